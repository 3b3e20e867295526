//! What no single value can know: whether the sections fit together.

use std::time::Duration;

use steadfast_core::schedule::{Calendar, Schedule, parse_moment};

use super::{Config, Kind, ScheduleSection, Vendor};

impl Config {
    /// Refuses what does not fit together; the key is where to look.
    pub(super) fn check(&self) -> Result<(), (String, String)> {
        let wrong = |at: &str, why: String| Err((at.to_owned(), why));
        if self.vendors.is_empty() {
            return wrong("vendor", "there is no vendor".to_owned());
        }
        if self.store.workspace.as_str() != "default" && self.warehouse.tenant_column.is_none() {
            let why = "a workspace of its own needs warehouse.tenant_column".to_owned();
            return wrong("workspace", why);
        }
        for (at, vendor) in self.vendors.iter().enumerate() {
            let name = &vendor.name;
            if self.vendors[..at].iter().any(|other| other.name == *name) {
                return wrong(name.as_str(), format!("two vendors are called {name}"));
            }
            if name.as_str() == "warehouse" {
                let why = "a vendor cannot be called warehouse, which is a connector's name";
                return wrong("name", why.to_owned());
            }
            vendor.check().map_err(|why| (name.as_str().to_owned(), why))?;
            let tenant = self.warehouse.tenant_column.as_ref();
            if tenant.is_some_and(|column| vendor.fields.contains_key(column)) {
                return wrong(name.as_str(), format!("vendor {name}: tenant_column is filled in"));
            }
            if let Some(why) = self.vendors[..at].iter().find_map(|other| vendor.clashes(other)) {
                return wrong(name.as_str(), why);
            }
        }
        self.schedule.check().map_err(|why| ("zone".to_owned(), why))
    }
}

impl ScheduleSection {
    /// Each fire asks for the day before, in UTC. Where clocks change around midnight a day would
    /// be passed over, and another asked for twice.
    fn check(&self) -> Result<(), String> {
        let schedule = Schedule {
            timezone: self.zone.as_str().to_owned(),
            ..Schedule::cron(self.cron.as_str())
        };
        let calendar = Calendar::new(&schedule).map_err(|e| e.message().to_owned())?;
        let year = parse_moment("2026-01-01").map_err(|e| e.message().to_owned())?;
        let until = year.after(Duration::from_secs(366 * 86_400));
        let days: Vec<String> = calendar.between(year, until).map(|at| at.utc_date(-1)).collect();
        // Only where it means every day can a day be missed.
        if !(360..=370).contains(&days.len()) {
            return Ok(());
        }
        let odd = days.windows(2).find(|two| {
            let next = parse_moment(&two[0]).map(|at| at.utc_date(1));
            next.as_ref() != Ok(&two[1])
        });
        match odd {
            None => Ok(()),
            Some(two) => Err(format!(
                "in this zone the clocks change so that after {} comes {}; fire later in the day, \
                 or use UTC",
                two[0], two[1]
            )),
        }
    }
}

impl Vendor {
    /// All vendors share one table: their rows are told apart in the same way.
    fn clashes(&self, other: &Self) -> Option<String> {
        let keys = |vendor: &Self| {
            let keys = vendor.fields.iter().filter(|(_, field)| field.key);
            keys.map(|(column, _)| column.clone()).collect::<Vec<_>>()
        };
        let (name, others) = (&self.name, &other.name);
        if keys(self) != keys(other) {
            return Some(format!("vendor {name} has other key fields than {others}"));
        }
        let kind = |column| Some((self.fields.get(column)?.kind, other.fields.get(column)?.kind));
        let odd = self.fields.keys().find(|c| kind(*c).is_some_and(|(a, b)| a != b))?;
        Some(format!("field {odd} of vendor {name} has another type than that of {others}"))
    }

    fn check(&self) -> Result<(), String> {
        if !self.fields.values().any(|field| field.key) {
            return Err(format!("vendor {}: no field is its rows' key (key = true)", self.name));
        }
        for taken in ["vendor_name", "target_date"] {
            if self.fields.keys().any(|column| column.as_str() == taken) {
                return Err(format!("vendor {}: the column {taken} is filled in", self.name));
            }
        }
        match &self.totals.column {
            Some(column) if !self.fields.contains_key(column) => {
                Err(format!("vendor {}: totals.column {column} is none of its fields", self.name))
            }
            Some(column) if !matches!(self.fields[column].kind, Kind::Decimal | Kind::Integer) => {
                let why = format!("totals.column {column} is no decimal and no integer");
                Err(format!("vendor {}: {why}", self.name))
            }
            None if self.totals.revenue.is_some() => {
                Err(format!("vendor {}: totals.revenue needs totals.column", self.name))
            }
            _ => Ok(()),
        }
    }
}
