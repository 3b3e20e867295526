//! The servers' programs, from the distribution when they are not there yet.
//!
//! Invariants: nothing is installed that is already present.
//! Deliberately absent: other package managers. There, a person installs the servers or names
//! running ones in the variables.

use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{Kind, find_program, is_root, mariadb, nats, postgres};

/// A second run may be installing at the same moment: wait for it.
const WAIT_FOR_LOCK: [&str; 2] = ["-o", "DPkg::Lock::Timeout=300"];

pub(super) fn ensure(needed: &[Kind]) -> Result<()> {
    let missing: Vec<Kind> = needed.iter().copied().filter(|kind| !is_present(*kind)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|kind| package(*kind)).collect();
    packages(&names).with_context(|| {
        let variables: Vec<&str> = missing.iter().map(|kind| kind.variable()).collect();
        format!("running ones may be named by {}", variables.join(" and "))
    })?;
    match missing.iter().find(|kind| !is_present(**kind)) {
        Some(kind) => bail!("{} is installed, but its programs are not found", package(*kind)),
        None => Ok(()),
    }
}

/// Installs packages of the distribution.
pub(crate) fn packages(packages: &[&str]) -> Result<()> {
    if find_program("apt-get").is_none() {
        bail!("no {} here, and no apt-get to install it with", packages.join(" and "));
    }
    eprintln!("installing {}", packages.join(" and "));
    // Old package lists may still do.
    if !apt_get(&["update"])? {
        eprintln!("apt-get update failed; trying with the lists at hand");
    }
    let install = ["install", "-y", "--no-install-recommends"];
    if !apt_get(&[&WAIT_FOR_LOCK[..], &install, packages].concat())? {
        bail!("apt-get could not install {}", packages.join(" and "));
    }
    Ok(())
}

fn is_present(kind: Kind) -> bool {
    match kind {
        Kind::Postgres => postgres::programs().is_some(),
        Kind::Mariadb => mariadb::programs().is_some(),
        Kind::Nats => nats::program().is_some(),
    }
}

const fn package(kind: Kind) -> &'static str {
    match kind {
        Kind::Postgres => "postgresql",
        Kind::Mariadb => "mariadb-server",
        Kind::Nats => "nats-server",
    }
}

fn apt_get(args: &[&str]) -> Result<bool> {
    // Through `env`, since sudo does not pass variables on.
    let program = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"];
    let sudo: &[&str] = if is_root()? { &[] } else { &["sudo"] };
    let line = [sudo, &program, args].concat();
    Ok(Command::new(line[0]).args(&line[1..]).status()?.success())
}
