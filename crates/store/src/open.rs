//! Opening a store by its URL.

use std::sync::Arc;

use crate::error::Error;
use crate::op::Store;

/// An open store of any kind.
pub type OpenStore = Arc<dyn Store>;

/// Opens `sqlite://file`, `sqlite::memory:`, `postgres://…` or `mysql://…`, bringing its schema up to
/// date first.
pub async fn open(url: &str) -> Result<OpenStore, Error> {
    let scheme = url.split(':').next().unwrap_or_default();
    match scheme {
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(Arc::new(crate::sqlite::Sqlite::open(url).await?)),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(Arc::new(crate::postgres::Postgres::open(url).await?)),
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => Ok(Arc::new(crate::mysql::Mysql::open(url).await?)),
        _ => Err(Error::Refused(format!(
            "\"{}\" is not a store URL; use sqlite://file, sqlite::memory:, postgres://… or mysql://…",
            redacted(url)
        ))),
    }
}

/// The URL without its password, fit for a message.
pub(crate) fn redacted(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    match rest.rsplit_once('@') {
        Some((user, host)) => {
            let name = user.split(':').next().unwrap_or_default();
            format!("{scheme}://{name}:***@{host}")
        }
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_never_reaches_a_message() {
        assert_eq!(redacted("postgres://me:s3cret@db/app"), "postgres://me:***@db/app");
        assert_eq!(redacted("postgres://me:p@ss@db/app"), "postgres://me:***@db/app");
        assert_eq!(redacted("sqlite://orders.db"), "sqlite://orders.db");
    }

    #[tokio::test]
    async fn an_unknown_scheme_is_refused_with_the_ones_there_are() {
        let Err(refused) = open("redis://x").await else { panic!("opened") };
        assert!(refused.to_string().contains("sqlite://file"));
    }
}
