//! The fields: days that months have or lack, and the letters.

use steadfast_core::schedule::{Calendar, Schedule};

use crate::model::{Pattern, zone};
use crate::{at, calendar, times};

/// The days in UTC on which a pattern of days fires, as month and day.
fn days(cron: &str, from: &str, until: &str) -> Vec<String> {
    let fires = times(&format!("0 12 {cron}"), "UTC", from, until);
    fires.iter().map(|fire| fire[5..10].to_owned()).collect()
}

#[test]
fn the_letters_mean_what_they_usually_mean() {
    let year = |cron: &str| days(cron, "2026-01-01", "2026-06-30T23:00:00Z");
    assert_eq!(year("L * *"), ["01-31", "02-28", "03-31", "04-30", "05-31", "06-30"]);
    assert_eq!(year("LW * *"), ["01-30", "02-27", "03-31", "04-30", "05-29", "06-30"]);
    assert_eq!(year("15W * *"), ["01-15", "02-16", "03-16", "04-15", "05-15", "06-15"]);
    assert_eq!(year("1W * *"), ["01-01", "02-02", "03-02", "04-01", "05-01", "06-01"]);
    assert_eq!(year("* * 5#2"), ["01-09", "02-13", "03-13", "04-10", "05-08", "06-12"]);
    assert_eq!(year("* * 5L"), ["01-30", "02-27", "03-27", "04-24", "05-29", "06-26"]);
    assert_eq!(year("* * 1#5"), ["03-30", "06-29"], "only where there is a fifth");
}

#[test]
fn a_month_without_the_day_is_passed_over() {
    assert_eq!(
        days("31 * *", "2026-01-01", "2026-12-31T23:00:00Z"),
        ["01-31", "03-31", "05-31", "07-31", "08-31", "10-31", "12-31"]
    );
    let leap = times("0 0 29 2 *", "UTC", "2096-03-01", "2108-01-01");
    assert_eq!(leap, ["2104-02-29T00:00:00+00:00"], "2100 is no leap year");
    assert_eq!(days("29 2 *", "2026-01-01", "2033-01-01"), ["02-29", "02-29"]);
}

#[test]
fn a_day_and_a_weekday_are_either_or() {
    assert_eq!(
        days("13 * 5", "2026-02-01", "2026-02-28T23:00:00Z"),
        ["02-06", "02-13", "02-20", "02-27"]
    );
    assert_eq!(days("1 * 1", "2026-04-01", "2026-04-14"), ["04-01", "04-06", "04-13"]);
}

#[test]
fn a_starred_step_of_days_and_a_weekday_are_both() {
    let may = |cron: &str| days(cron, "2026-05-01", "2026-05-31T23:00:00Z");
    assert_eq!(may("*/10 * 5"), ["05-01"], "the 1st, 11th, 21st and 31st, if it is a Friday");
    assert_eq!(may("1-31/10 * 5").len(), 4 + 5 - 1, "without the star either will do");
    // 2026-05-03 is a Sunday.
    assert_eq!(may("1-10 * */7"), ["05-03", "05-10"]);
}

#[test]
fn midnight_has_a_name_and_no_step_is_wider_than_its_field() {
    let named = times("@midnight", "UTC", "2026-05-01", "2026-05-03");
    assert_eq!(named, times("0 0 * * *", "UTC", "2026-05-01", "2026-05-03"));
    let refusal = |cron: &str| Calendar::new(&Schedule::cron(cron)).unwrap_err();
    for (cron, says) in [
        ("*/61 * * * *", "a step of 61 is wider than the 60 minutes"),
        ("0 */25 * * *", "a step of 25 is wider than the 24 hours"),
        ("*/61 * * * * *", "a step of 61 is wider than the 60 seconds"),
        ("0 0 1-31/32 * *", "the 31 days of the month"),
        ("0 0 * 1,*/13 *", "the 12 months"),
        ("0 0 * * */8", "the 7 days of the week"),
    ] {
        assert_eq!(refusal(cron).code(), "SF-0601", "{cron}");
        assert!(refusal(cron).message().contains(says), "{cron}: {}", refusal(cron));
    }
    for fine in ["*/60 * * * *", "0 */24 * * *", "0 0 */31 * *", "0 0 * * */7"] {
        Calendar::new(&Schedule::cron(fine)).unwrap();
    }
}

#[test]
fn a_year_ends_where_it_does_on_the_wall() {
    assert_eq!(
        times("59 59 23 31 12 *", "Pacific/Kiritimati", "2026-01-01", "2027-01-01"),
        ["2026-12-31T09:59:59+00:00"]
    );
    assert_eq!(
        times("*/30 * * * * *", "UTC", "2026-12-31T23:59:00Z", "2027-01-01T00:00:30Z"),
        ["2026-12-31T23:59:30+00:00", "2027-01-01T00:00:00+00:00", "2027-01-01T00:00:30+00:00"]
    );
}

#[test]
fn a_moment_within_a_second_is_after_that_second_began() {
    let every = calendar("* * * * * *", "Europe/Berlin");
    assert_eq!(every.after(at("2026-06-01T00:00:00.999999Z")), Some(at("2026-06-01T00:00:01Z")));
    assert_eq!(every.after(at("2026-06-01T00:00:01Z")), Some(at("2026-06-01T00:00:02Z")));
}

#[test]
fn start_and_end_are_included() {
    let schedule = Schedule {
        start_at: Some(at("2026-06-02T03:00:00Z")),
        end_at: Some(at("2026-06-04T03:00:00Z")),
        ..Schedule::cron("0 3 * * *")
    };
    let calendar = Calendar::new(&schedule).unwrap();
    let fires: Vec<_> = calendar.between(at("2026-01-01"), at("2027-01-01")).collect();
    let wanted = ["2026-06-02T03:00:00Z", "2026-06-03T03:00:00Z", "2026-06-04T03:00:00Z"];
    assert_eq!(fires, wanted.map(at));
    assert_eq!(calendar.after(fires[2]), None);
}

#[test]
fn four_years_of_letters_agree_with_the_wall() {
    let (from, until) = (at("2025-01-01"), at("2029-01-01"));
    let seconds = |moment: steadfast_core::Timestamp| moment.as_micros() / 1_000_000;
    let berlin = zone("Europe/Berlin");
    for days in ["L * *", "LW * *", "1W * *", "15W * *", "31W * *", "28 2 *", "29 2 *", "30,31 * *"]
        .into_iter()
        .chain(["* * 1#1", "* * 0#5", "* * 7L", "* * 1L,7L", "* * 7#3,1", "1-7 * 1", "L * 5"])
    {
        let cron = format!("0 6 {days}");
        let calendar = calendar(&cron, "Europe/Berlin");
        let ours: Vec<_> = calendar.between(from, until).map(seconds).collect();
        let wall = Pattern::new(&cron).fires(&berlin, seconds(from), seconds(until), 3600);
        assert_eq!(ours, wall, "{cron}");
    }
}
