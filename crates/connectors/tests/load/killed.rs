//! A process that dies in the middle of a load into a file: in whichever write it is, the partition
//! is the old one or the new one.
//!
//! The kernel does the killing: past its file size limit a process gets SIGXFSZ inside `write`.
//! With a limit that grows page by page, every write that makes the file or its log longer is once
//! the last one.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus};

use steadfast_core::connector::{Connector as _, Outbound, Probe};
use steadfast_testkit::db::TestDb;

use super::{Warehouse, way};

/// Names the folder in which the other process finds what to do.
const ORDERS: &str = "STEADFAST_TEST_LOAD";
/// The test that is the other process.
const ITSELF: &str = "killed::a_load_by_another_process_is_whole";
/// Enough for a log of many pages.
const ROWS: u64 = 600;
/// Half a page of the file.
const STEP: u64 = 2048;
/// Past the file size limit.
const SIGXFSZ: i32 = 25;

/// Has the load made by another process, whose files may not grow beyond a limit.
fn by_another(warehouse: &Warehouse, asked: &Outbound, limit: Option<u64>) -> ExitStatus {
    let folder = warehouse.folder.path();
    std::fs::write(folder.join("url"), format!("{}\n", warehouse.db.url)).unwrap();
    std::fs::write(folder.join("key"), asked.key.as_deref().unwrap()).unwrap();
    std::fs::write(folder.join("input"), asked.input.to_string()).unwrap();
    let limit = limit.map_or("unlimited".to_owned(), |bytes| bytes.to_string());
    let mut other = Command::new("prlimit");
    // A core file would be the last thing to write.
    other.args(["--core=0", &format!("--fsize={limit}")]).arg(std::env::current_exe().unwrap());
    other.args(["--exact", ITSELF]).env(ORDERS, folder).output().unwrap().status
}

/// The other process.
async fn carry_out(folder: &Path) {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let input = serde_json::from_str(&read("input")).unwrap();
    let asked =
        Outbound { key: Some(read("key")), ..Outbound::new("load warehouse.sales_daily", input) };
    way(&folder.join("url"), folder, "warehouse.").send(&asked).await.unwrap();
}

/// R28: loads in the name of the test below; started by itself, has that done without a limit.
#[tokio::test]
async fn a_load_by_another_process_is_whole() {
    if let Some(folder) = std::env::var_os(ORDERS) {
        return carry_out(Path::new(&folder)).await;
    }
    let warehouse = Warehouse::new(TestDb::sqlite()).await;
    let asked = warehouse.asked(warehouse.load(ROWS, "h"), "k");
    assert!(by_another(&warehouse, &asked, None).success());
    let whole = (vec!["h".to_owned()], usize::try_from(ROWS).unwrap(), Some("h".to_owned()));
    assert_eq!(warehouse.held().await, whole);
}

/// R28: killed in any write: no row twice, none lost, never a mix; and the same key goes on from
/// there.
#[tokio::test(flavor = "multi_thread")]
async fn r028_a_process_killed_in_any_write_leaves_a_whole_partition() {
    let warehouse = Warehouse::new(TestDb::sqlite()).await;
    warehouse.send(warehouse.load(ROWS, "h0"), "k0").await.unwrap();
    let (mut killed, mut done_anyway) = (0, 0);
    for turn in 1.. {
        let (before, hash) = (warehouse.held().await, format!("h{turn}"));
        let asked = warehouse.asked(warehouse.load(ROWS, &hash), &format!("k{turn}"));
        let ended = by_another(&warehouse, &asked, Some(turn * STEP));
        if ended.success() {
            break;
        }
        assert_eq!(ended.signal(), Some(SIGXFSZ), "{turn}: {ended}");
        killed += 1;
        let whole = (vec![hash.clone()], usize::try_from(ROWS).unwrap(), Some(hash));
        let way = warehouse.way(&warehouse.db.url);
        match way.probe(&asked).await.unwrap() {
            Probe::Done(_) => {
                done_anyway += 1;
                assert_eq!(warehouse.held().await, whole, "{turn}: done");
            }
            Probe::NotDone => assert_eq!(warehouse.held().await, before, "{turn}: not done"),
            Probe::CannotTell => panic!("it keeps records"),
        }
        way.send(&asked).await.unwrap();
        assert_eq!(warehouse.held().await, whole, "{turn}: again");
    }
    assert!(killed > 30, "only {killed} times");
    assert!(done_anyway > 0, "never after the commit");
}
