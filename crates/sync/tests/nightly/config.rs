//! Mistakes in the file: each is told with its line, and what was probably meant.

use steadfast_sync::Config;

const GOOD: &str = r#"
[store]
url = "sqlite://steadfast.db"
[warehouse]
url = "postgres://etl@db.internal/warehouse"
password = "env:WAREHOUSE_PASSWORD"
[schedule]
cron = "0 3 * * *"
zone = "UTC"
[[vendor]]
name = "acme_sales"
base_url = "https://api.acme.example/v1"
auth = { secret = "env:ACME_TOKEN" }
[vendor.fields]
sku = { key = true }
revenue = { type = "decimal" }
[vendor.totals]
revenue = "total_revenue"
column = "revenue"
tolerance = "0.01"
"#;

/// What is said of the file with one thing changed.
fn said(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    let text = GOOD.replacen(from, to, 1);
    Config::parse(&text, "steadfast.toml").expect_err(to).to_string()
}

#[test]
fn a_good_file_is_read() {
    let config = Config::parse(GOOD, "steadfast.toml").unwrap();
    assert_eq!(config.vendors[0].path.as_str(), "/sales/daily");
    assert_eq!(config.warehouse.table.as_str(), "warehouse.sales_daily");
}

#[test]
fn a_mistake_has_a_line_and_a_suggestion() {
    for (from, to, place, word) in [
        ("password", "pasword", "steadfast.toml:6:1", "did you mean `password`?"),
        ("base_url =", "base_uri =", "steadfast.toml:12:1", "did you mean `base_url`?"),
        ("\"decimal\"", "\"decmal\"", "steadfast.toml:16", "did you mean `decimal`?"),
        ("[schedule]", "[shedule]", "steadfast.toml:7", "did you mean `schedule`?"),
        ("[[vendor]]", "[vendor]", "steadfast.toml:10", "each begins with a line [[vendor]]"),
        ("[[vendor]]", "[[vendro]]", "steadfast.toml:14", "each begins with a line [[vendor]]"),
        ("0 3 * * *", "0 25 * * *", "steadfast.toml:8", ""),
        ("\"UTC\"", "\"Mars/Olympus\"", "steadfast.toml:9", "IANA"),
        ("env:ACME_TOKEN", "sk-live-123", "steadfast.toml:13", "env: or file:"),
        ("https://api", "ftp://api", "steadfast.toml:12", "base_url"),
        ("\"0.01\"", "\"a cent\"", "steadfast.toml:20", "decimal"),
        ("key = true", "key = 1", "steadfast.toml:15", "boolean"),
        ("column = \"revenue\"", "column = \"revenu\"", "steadfast.toml:11", "none of its fields"),
        ("{ key = true }", "{ key = false }", "steadfast.toml:11", "key = true"),
        ("name = \"acme_sales\"", "name = \"acme sales\"", "steadfast.toml:11", "no name"),
        ("[store]", "[store", "steadfast.toml:2", ""),
    ] {
        let said = said(from, to);
        assert!(said.starts_with(place), "{to}: {said}");
        assert!(said.contains(word), "{to}: {said}");
        assert!(!said.contains("sk-live"), "a secret is not repeated: {said}");
    }
}

#[test]
fn a_zone_in_which_a_day_would_be_passed_over_is_refused() {
    let odd = GOOD.replace("0 3 * * *", "30 0 * * *").replace("\"UTC\"", "\"Europe/London\"");
    let said = Config::parse(&odd, "f").unwrap_err().to_string();
    assert!(said.contains("clocks change"), "{said}");
    let fine = GOOD.replace("\"UTC\"", "\"Europe/London\"");
    Config::parse(&fine, "f").unwrap();
}

#[test]
fn vendors_that_share_a_table_have_the_same_keys() {
    let two = |fields: &str| {
        format!(
            "{GOOD}\n[[vendor]]\nname = \"other\"\nbase_url = \"https://b.example\"\n\
             [vendor.fields]\n{fields}\n"
        )
    };
    Config::parse(&two("sku = { key = true }\nnote = {}"), "f").unwrap();
    for (fields, word) in [
        ("sku = {}\nean = { key = true }", "other key fields"),
        ("sku = { key = true }\nrevenue = {}", "another type"),
    ] {
        let said = Config::parse(&two(fields), "f").unwrap_err().to_string();
        assert!(said.contains(word), "{said}");
    }
}

#[test]
fn what_no_single_value_can_know_is_checked_too() {
    let two = format!(
        "{GOOD}\n[[vendor]]\nname = \"acme_sales\"\nbase_url = \"https://b.example\"\n\
         [vendor.fields]\nsku = {{ key = true }}\n"
    );
    let said = Config::parse(&two, "f").unwrap_err().to_string();
    assert!(said.contains("two vendors are called acme_sales"), "{said}");
    let none = GOOD.split("[[vendor]]").next().unwrap();
    assert!(Config::parse(none, "f").unwrap_err().to_string().contains("vendor"));
}
