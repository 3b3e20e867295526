//! Opening a store by its URL.

use std::sync::Arc;

use steadfast_core::redact;

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
            redact::address(url)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unknown_scheme_is_refused_with_the_ones_there_are() {
        let Err(refused) = open("redis://x").await else { panic!("opened") };
        assert!(refused.to_string().contains("sqlite://file"));
    }
}
