//! A world of its own for each test.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use steadfast::connector::{Connector, Inbound, Limits, Operation, Outbound, Probe};
use steadfast::{
    Builder, CommandInfo, CommandStatus, ErrorClass, Result, Retry, Steadfast, Timestamp,
    parse_moment,
};
use steadfast_connectors::{Sql, SqlConnector};
use steadfast_core::decimal::Decimal;
use steadfast_sync::leap::LeapEnv;
use steadfast_sync::simulator::{FIELDS, Seen, Simulator};
use steadfast_sync::{Config, Report, job, warehouse};
use steadfast_testkit::db::{DbKind, TestDb};
use tempfile::TempDir;
use tokio::sync::Semaphore;

pub(crate) const VENDOR: &str = "acme_sales";
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct World {
    pub(crate) vendor: Simulator,
    pub(crate) config: Config,
    pub(crate) clock: Arc<LeapEnv>,
    pub(crate) fabric: Steadfast,
    look: SqlConnector,
    _dbs: (TestDb, TestDb),
    _dir: TempDir,
}

/// One world for each kind of database that can be had.
pub(crate) async fn everywhere(test: impl AsyncFn(World)) {
    for (store, warehouse) in TestDb::all().into_iter().zip(TestDb::all()) {
        test(World::of(store, warehouse, ["", ""]).await).await;
    }
}

/// The same with a warehouse whose loads wait for a word.
pub(crate) async fn everywhere_slow(test: impl AsyncFn(World, Held)) {
    for (store, warehouse) in TestDb::all().into_iter().zip(TestDb::all()) {
        let held = Held::default();
        let slow = Some(held.clone());
        let world = World::made(store, warehouse, ["", ""], slow).await;
        test(world, held).await;
    }
}

/// Loads that are held. Cloning it gives the same.
#[derive(Clone)]
pub(crate) struct Held(Arc<(Semaphore, Semaphore)>);

impl Default for Held {
    fn default() -> Self {
        Self(Arc::new((Semaphore::new(0), Semaphore::new(0))))
    }
}

impl Held {
    /// Waits until a load has begun.
    pub(crate) async fn begun(&self) {
        within("a load begins", self.0.0.acquire()).await.unwrap().forget();
    }

    /// Lets a load go on.
    pub(crate) fn release(&self) {
        self.0.1.add_permits(1);
    }
}

/// A way to the warehouse on which loads are held.
struct Slow(SqlConnector, Option<Held>);

impl Connector for Slow {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn scope(&self) -> &[Operation] {
        self.0.scope()
    }

    fn send<'a>(&'a self, request: &'a Outbound) -> BoxFuture<'a, Result<Inbound>> {
        Box::pin(async move {
            if let Some(held) = self.1.as_ref().filter(|_| request.operation.starts_with("load")) {
                held.0.0.add_permits(1);
                held.0.1.acquire().await.unwrap().forget();
            }
            self.0.send(request).await
        })
    }

    fn probe<'a>(&'a self, request: &'a Outbound) -> BoxFuture<'a, Result<Probe>> {
        self.0.probe(request)
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }

    fn retry(&self) -> Retry {
        self.0.retry()
    }
}

impl World {
    /// One world, with more lines of configuration.
    pub(crate) async fn with(more: &str) -> Self {
        Self::of(served(), served(), [more, ""]).await
    }

    /// One world, with more lines in the vendor's section.
    pub(crate) async fn with_vendor(more: &str) -> Self {
        Self::of(served(), served(), ["", more]).await
    }

    async fn of(store: TestDb, at: TestDb, more: [&str; 2]) -> Self {
        Self::made(store, at, more, None).await
    }

    async fn made(store: TestDb, at: TestDb, more: [&str; 2], held: Option<Held>) -> Self {
        let dir = TempDir::new().unwrap();
        let vendor = Simulator::new();
        let url = vendor.listen().await.unwrap();
        let text = configuration(&store, &at, &dir, &url, more);
        let config = Config::parse(&text, "test.toml").unwrap_or_else(|e| panic!("{e}\n{text}"));
        warehouse::create(&config).await.unwrap();
        let clock = LeapEnv::at(parse_moment("2026-06-01T12:00:00+00:00").unwrap());
        let builder = Steadfast::open(&config.store.url).env(clock.clone());
        let builder = builder.poll(Duration::from_millis(5), Duration::from_millis(50));
        let way = Slow(job::warehouse(&config).unwrap(), held);
        let builder = job::install_with(builder, &config, way).unwrap();
        let fabric = builder.start().await.unwrap();
        let mut look = Sql::connect("look", format!("file:{}", dir.path().join("url").display()));
        let schema = schema(&at);
        for table in ["sales_daily", "vendor_sync_state", "steadfast_outbound"] {
            let schema = if at.kind() == DbKind::Postgres && table == "steadfast_outbound" {
                "public."
            } else {
                &schema
            };
            look = look.allow(Operation::read(format!("select {schema}{table}")));
        }
        let look = look.build().unwrap();
        Self { vendor, config, clock, fabric, look, _dbs: (store, at), _dir: dir }
    }

    /// Another worker on the same store and clock.
    pub(crate) async fn worker(
        &self,
        install: impl FnOnce(Builder) -> Result<Builder>,
    ) -> Steadfast {
        let builder = Steadfast::open(&self.config.store.url).env(self.clock.clone());
        let builder = builder.poll(Duration::from_millis(5), Duration::from_millis(50));
        install(builder).unwrap().start().await.unwrap()
    }

    /// Waits until something is so.
    pub(crate) async fn until(&self, what: &str, is_so: impl AsyncFn() -> bool) {
        within(what, async {
            while !is_so().await {
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        })
        .await;
    }

    /// Leaps to the fire for a day, and gives its command.
    pub(crate) async fn fire(&self, date: &str) -> String {
        self.fire_of(VENDOR, date).await
    }

    /// The same for another vendor.
    pub(crate) async fn fire_of(&self, vendor: &str, date: &str) -> String {
        self.clock.leap_to(fires_at(date).after(Duration::from_millis(5)));
        let key = job::key(&self.config, vendor, date);
        within("the night fires", async {
            loop {
                if let Some(info) = self.fabric.command_by_key(&key).await.unwrap() {
                    return info.command.command_id;
                }
                // One that is denied leaves the key to others.
                let schedule = self.fabric.schedule(job::schedule_id(vendor));
                let at = fires_at(date);
                let slot = schedule.slots_between(at, at).await.unwrap().pop();
                if let Some(slot) = slot.filter(|slot| !slot.command_id.is_empty()) {
                    return slot.command_id;
                }
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        })
        .await
    }

    /// Sees a command through to its end.
    pub(crate) async fn end(&self, id: &str) -> CommandInfo {
        within("the command ends", self.clock.see_through(&self.fabric, id)).await.unwrap()
    }

    /// A whole night.
    pub(crate) async fn night(&self, date: &str) -> CommandInfo {
        let id = self.fire(date).await;
        self.end(&id).await
    }

    /// Waits until the vendor has seen so many requests for a day.
    pub(crate) async fn asked(&self, date: &str, times: usize) {
        within("the vendor is asked", async {
            while self.requests(date).len() < times {
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        })
        .await;
    }

    pub(crate) fn requests(&self, date: &str) -> Vec<Seen> {
        self.vendor.log().into_iter().filter(|seen| seen.date == date).collect()
    }

    pub(crate) fn statuses(&self, date: &str) -> Vec<u16> {
        self.requests(date).iter().map(|seen| seen.status).collect()
    }

    /// What the warehouse holds of a day: how many rows, and what they come to.
    pub(crate) async fn held(&self, date: &str) -> (usize, Decimal) {
        self.held_of(VENDOR, date).await
    }

    /// The same of another vendor.
    pub(crate) async fn held_of(&self, vendor: &str, date: &str) -> (usize, Decimal) {
        let filter = json!({ "vendor_name": vendor, "target_date": date });
        let found = self.table("sales_daily", filter).await;
        let revenue = |row: &Value| match &row["revenue"] {
            Value::String(text) => text.parse::<Decimal>().unwrap(),
            other => other.to_string().parse().unwrap(),
        };
        (found.len(), found.iter().map(revenue).sum())
    }

    /// What the vendor has of a day, in the same form.
    pub(crate) fn has(&self, date: &str) -> (usize, Decimal) {
        let day = self.vendor.day(date);
        (day.rows.len(), day.total)
    }

    /// Rows of one of the warehouse's tables.
    pub(crate) async fn table(&self, table: &str, filter: Value) -> Vec<Value> {
        let operations = self.look.scope().iter().map(|operation| operation.name.clone());
        let operation = operations.into_iter().find(|name| name.ends_with(table)).unwrap();
        let input = json!({ "where": filter, "limit": 10_000 });
        match self.look.send(&Outbound::new(operation, input)).await {
            Ok(answer) => answer.output["rows"].as_array().unwrap().clone(),
            // Nobody has written yet, so nobody has made the table of keys.
            Err(error) if table == "steadfast_outbound" && error.code() == "SF-0723" => Vec::new(),
            Err(error) => panic!("{table}: {error}"),
        }
    }

    /// Loads that were committed.
    pub(crate) async fn writes(&self) -> usize {
        self.table("steadfast_outbound", json!({})).await.len()
    }

    /// The types of a command's events, as auditors read them.
    pub(crate) async fn events(&self, id: &str) -> Vec<String> {
        let events = self.fabric.command::<Report>(id).events().await.unwrap();
        events.into_iter().map(|event| event.event_type).collect()
    }
}

/// Two tenants of one warehouse.
pub(crate) struct Tenants {
    pub(crate) base: World,
    pub(crate) tenants: Vec<(Steadfast, Config)>,
}

impl World {
    /// Two tenants for each kind of database that can be had.
    pub(crate) async fn tenants_everywhere(test: impl AsyncFn(Tenants)) {
        let more = "tenant_column = \"workspace_id\"\n";
        for (store, at) in TestDb::all().into_iter().zip(TestDb::all()) {
            test(Self::of(store, at, [more, ""]).await.tenants().await).await;
        }
    }

    async fn tenants(self) -> Tenants {
        let base = self;
        let mut tenants = Vec::new();
        for name in ["north", "south"] {
            let mut config = base.config.clone();
            config.store.workspace = name.to_owned().try_into().unwrap();
            let builder = Steadfast::open(&config.store.url).env(base.clock.clone());
            let fabric = job::install(builder, &config).unwrap().start().await.unwrap();
            tenants.push((fabric, config));
        }
        Tenants { base, tenants }
    }
}

/// A Postgres where there is a server, as in the whole suite; a file for who runs one test by hand.
fn served() -> TestDb {
    TestDb::postgres().unwrap_or_else(TestDb::sqlite)
}

fn schema(db: &TestDb) -> String {
    match db.kind() {
        // Its schemas are databases, which other tests would share.
        DbKind::Mysql => String::new(),
        DbKind::Sqlite | DbKind::Postgres => "warehouse.".to_owned(),
    }
}

fn configuration(
    store: &TestDb,
    at: &TestDb,
    dir: &TempDir,
    url: &str,
    [more, of_vendor]: [&str; 2],
) -> String {
    let (place, schema) = (dir.path().display(), schema(at));
    std::fs::write(dir.path().join("url"), format!("{}\n", at.url)).unwrap();
    format!(
        "[store]\nurl = \"{}\"\nspool = \"{place}/spool\"\n\
         [warehouse]\nurl = \"file:{place}/url\"\n\
         table = \"{schema}sales_daily\"\nstate_table = \"{schema}vendor_sync_state\"\n\
         {more}\n\
         [[vendor]]\nname = \"{VENDOR}\"\nbase_url = \"{url}\"\nallow_private = true\n\
         pagination = {{ style = \"cursor\", param = \"cursor\", next = \"next_cursor\" }}\n\
         {of_vendor}\n\
         [vendor.fields]\n{FIELDS}\n\
         [vendor.totals]\nrows = \"row_count\"\nrevenue = \"total_revenue\"\n\
         column = \"revenue\"\ntolerance = \"0.01\"\n",
        store.url
    )
}

/// 03:00 of the day after.
pub(crate) fn fires_at(date: &str) -> Timestamp {
    parse_moment(date).unwrap().after(Duration::from_secs(27 * 3600))
}

async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(done) => done,
        Err(_) => panic!("not in {PATIENCE:?}: {what}"),
    }
}

/// The report of a command that succeeded.
pub(crate) fn report(info: &CommandInfo) -> Report {
    assert_eq!(info.command.status, CommandStatus::Succeeded, "{:?}", info.command.error);
    serde_json::from_str(info.command.result.as_deref().unwrap()).unwrap()
}

/// The class by which a command failed.
pub(crate) fn failed(info: &CommandInfo) -> ErrorClass {
    assert_eq!(info.command.status, CommandStatus::Failed);
    info.command.error.as_ref().unwrap().class()
}

/// How long after its fire a command ended.
pub(crate) fn took(info: &CommandInfo, date: &str) -> Duration {
    fires_at(date).until(info.command.completed_at.unwrap())
}
