//! Addresses without their secrets, fit for messages and logs.
//!
//! Invariant: what may be a password is hidden, also in an address that cannot be read, because
//! such an address is what ends up in an error. Hiding too much is no harm.

/// What stands in the place of a secret.
const HIDDEN: &str = "***";

/// Parameters whose values are secrets, in URLs (`?password=…`) and in the keyword form of libpq
/// (`host=db password=…`).
const SECRETS: [&str; 9] =
    ["password", "passwd", "pwd", "pass", "sslpassword", "secret", "token", "apikey", "api_key"];

/// The address of a database or service without passwords.
pub fn address(text: &str) -> String {
    let text = without_credentials(text);
    without_parameters(&text)
}

/// Hides what stands between the name of a user and the last `@`: a password may hold any
/// character, also `/` and `@`.
fn without_credentials(text: &str) -> String {
    let Some(at) = text.rfind('@') else { return text.to_owned() };
    // `mysql:me:secret@db` has no slashes, and is no URL: all behind the first colon goes.
    let start = text[..at].find("://").map_or(0, |scheme| scheme + 3);
    match text[start..at].find(':') {
        Some(colon) => format!("{}:{HIDDEN}{}", &text[..start + colon], &text[at..]),
        None => text.to_owned(),
    }
}

fn without_parameters(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(equals) = rest.find('=') {
        let (before, value) = (&rest[..equals], &rest[equals + 1..]);
        shown.push_str(before);
        shown.push('=');
        let name = before.trim_end().rsplit(|c: char| !c.is_alphanumeric() && c != '_' && c != '-');
        let name = name.into_iter().next().unwrap_or_default().to_ascii_lowercase();
        rest = value;
        if SECRETS.contains(&name.replace('-', "_").as_str()) {
            shown.push_str(HIDDEN);
            rest = &value[end_of_value(value)..];
        }
    }
    shown + rest
}

/// Where a value ends: behind its closing quote, or before the next parameter.
fn end_of_value(value: &str) -> usize {
    let spaces = value.len() - value.trim_start().len();
    let trimmed = &value[spaces..];
    let Some(quoted) = trimmed.strip_prefix('\'') else {
        let end = trimmed.find(|c: char| c == '&' || c == ';' || c.is_whitespace());
        return spaces + end.unwrap_or(trimmed.len());
    };
    let mut escaped = false;
    for (at, c) in quoted.char_indices() {
        match c {
            '\'' if !escaped => return spaces + 1 + at + 1,
            _ => escaped = c == '\\' && !escaped,
        }
    }
    value.len()
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn a_password_is_hidden_in_every_form_of_an_address() {
        for (given, shown) in [
            ("postgres://me:s3cret@db/app", "postgres://me:***@db/app"),
            ("postgres://me:p@s/s?3cret@db/app", "postgres://me:***@db/app"),
            (
                "postgres://db/app?user=me&password=s3cret&x=1",
                "postgres://db/app?user=me&password=***&x=1",
            ),
            ("postgres://db/app?sslPassword=s3cret", "postgres://db/app?sslPassword=***"),
            ("host=db user=me password=s3cret port=1", "host=db user=me password=*** port=1"),
            ("host=db password = 's3 cr\\'et' port=1", "host=db password =*** port=1"),
            ("password='s3cret", "password=***"),
            ("mysql:me:s3cret@db/app", "mysql:***@db/app"),
            ("mysql//me:s3cret@db", "mysql//me:***@db"),
            ("sqlite://orders.db", "sqlite://orders.db"),
            ("sqlite:///tmp/a@b/o.db?mode=ro", "sqlite:///tmp/a@b/o.db?mode=ro"),
            ("", ""),
        ] {
            assert_eq!(address(given), shown, "{given}");
        }
    }

    #[test]
    fn no_text_is_too_odd() {
        for odd in
            ["=", "password=", "@", ":@", "://@", "password='\\", "é=ß&password=ü@ö", "= = ="]
        {
            address(odd);
        }
    }
}
