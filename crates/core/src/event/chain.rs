//! Walking a chain link by link, and saying where it is broken.
//!
//! Invariants: a walk holds one link and needs pages of any size, in order; the first broken place
//! is named with what is wrong there, as far as the rows around it tell.

use std::fmt;

use super::removal::{Gone, Removal};
use super::{Facts, link};

/// A place in the chain, and the link there: noted elsewhere, it shows later that nothing before it
/// was rewritten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anchor {
    /// The number.
    pub seq: i64,
    /// The link, in hexadecimal.
    pub hash: String,
}

/// One numbered place of the chain, as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its number.
    pub seq: i64,
    /// What is there.
    pub body: LinkBody,
}

/// What is at a place of the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkBody {
    /// A row: its id, the digest of what it says now, and the link it was given.
    Kept {
        /// The event.
        event_id: String,
        /// The digest of the row as it is.
        digest: String,
        /// The link that is written in it.
        hash: String,
        /// What it tells of, if it is retention's.
        removal: Option<Removal>,
    },
    /// A row that retention removed: the digest it had.
    Removed(String),
}

/// The first broken place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Break {
    /// The row says something else than when it was sealed.
    Changed(i64, String),
    /// A row is gone, and retention did not remove it.
    Missing(i64),
    /// Another row, found at the second number, belongs at the first.
    Reordered(i64, i64, String),
    /// The row says what it said, but its seal is not the one it was given.
    Forged(i64, String),
    /// A row has a number that was never given.
    Unknown(i64, String),
    /// The chain's head, or what was noted elsewhere, does not follow from the rows.
    Head(i64),
    /// The row is gone, or everything up to its number is, and no event of retention tells of it.
    Untold(i64),
}

impl Break {
    /// The number of the broken place.
    pub fn seq(&self) -> i64 {
        match self {
            Self::Changed(seq, _)
            | Self::Missing(seq)
            | Self::Reordered(seq, _, _)
            | Self::Forged(seq, _)
            | Self::Unknown(seq, _)
            | Self::Head(seq)
            | Self::Untold(seq) => *seq,
        }
    }

    /// What is wrong, in a word.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Changed(..) => "changed",
            Self::Missing(..) => "missing",
            Self::Reordered(..) => "reordered",
            Self::Forged(..) => "forged",
            Self::Unknown(..) => "unknown",
            Self::Head(..) => "head",
            Self::Untold(..) => "untold",
        }
    }
}

impl fmt::Display for Break {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed(seq, id) => write!(f, "event {id} (number {seq}) was changed"),
            Self::Missing(seq) => write!(f, "the event with number {seq} is missing"),
            Self::Reordered(seq, from, id) => {
                write!(f, "event {id} has number {from}, but was sealed as number {seq}")
            }
            Self::Forged(seq, id) => write!(f, "the seal of event {id} (number {seq}) is forged"),
            Self::Unknown(seq, id) => {
                write!(f, "event {id} has number {seq}, which was never given")
            }
            Self::Head(seq) => {
                write!(f, "the link noted for number {seq} does not follow from the events")
            }
            Self::Untold(seq) => {
                write!(f, "the event with number {seq} is gone, and no retention tells of it")
            }
        }
    }
}

/// A walk along the chain.
#[derive(Debug, Clone)]
pub struct Walk {
    at: Anchor,
    /// Rows whose digests were recomputed.
    pub kept: u64,
    /// Places whose rows retention has removed.
    pub removed: u64,
    gone: Gone,
}

impl Walk {
    /// Begins behind a place that is trusted.
    pub fn from(at: Anchor) -> Self {
        Self { at, kept: 0, removed: 0, gone: Gone::default() }
    }

    /// How far the chain is whole.
    pub fn at(&self) -> &Anchor {
        &self.at
    }

    /// Begins anew behind a checkpoint: retention has removed what comes before.
    pub fn skip_to(&mut self, base: Anchor) {
        self.at = base;
    }

    /// Follows a page of links, with the head as it was when the page was read. `more` says that
    /// the page was full.
    pub fn follow(
        &mut self,
        links: &[Link],
        head: &Anchor,
        more: bool,
        noted: Option<&Anchor>,
    ) -> Result<(), Break> {
        for (place, found) in links.iter().enumerate() {
            let seq = self.at.seq + 1;
            if found.seq > head.seq {
                return Err(self.beyond(found, head));
            }
            if found.seq != seq {
                return Err(Break::Missing(seq));
            }
            self.step(&links[place..], head)?;
            if noted.is_some_and(|noted| noted.seq == seq && noted.hash != self.at.hash) {
                return Err(Break::Head(seq));
            }
        }
        if more {
            return Ok(());
        }
        if self.at.seq < head.seq {
            return Err(Break::Missing(self.at.seq + 1));
        }
        if self.at != *head {
            return Err(Break::Head(head.seq));
        }
        match noted {
            Some(noted) if noted.seq > head.seq => Err(Break::Missing(head.seq + 1)),
            _ => Ok(()),
        }
    }

    /// Refuses a chain of which something is gone that no event of retention tells of. `unsealed`
    /// are those that have no number yet. Asked at the chain's end.
    pub fn all_told(&mut self, base: &Anchor, unsealed: &[Removal]) -> Result<(), Break> {
        unsealed.iter().for_each(|removal| self.gone.told(removal));
        self.gone.untold(base).map_or(Ok(()), |seq| Err(Break::Untold(seq)))
    }

    fn beyond(&self, found: &Link, head: &Anchor) -> Break {
        match &found.body {
            _ if self.at.seq < head.seq => Break::Missing(self.at.seq + 1),
            LinkBody::Kept { event_id, .. } => Break::Unknown(found.seq, event_id.clone()),
            LinkBody::Removed(_) => Break::Missing(found.seq),
        }
    }

    fn step(&mut self, rest: &[Link], head: &Anchor) -> Result<(), Break> {
        let seq = rest[0].seq;
        let hash = match &rest[0].body {
            LinkBody::Removed(digest) => {
                self.removed += 1;
                self.gone.found(seq);
                link(&self.at.hash, digest)
            }
            LinkBody::Kept { event_id, digest, hash, removal } => {
                let right = link(&self.at.hash, digest);
                if right != *hash {
                    return Err(self.why(rest, head, event_id, hash, &right));
                }
                self.kept += 1;
                // Nobody tells of what has not happened yet.
                if let Some(removal) = removal.as_ref().filter(|r| r.ends().1 < seq) {
                    self.gone.told(removal);
                }
                right
            }
        };
        self.at = Anchor { seq, hash };
        Ok(())
    }

    /// What is wrong with the first row of the rest, as far as those behind it tell.
    fn why(&self, rest: &[Link], head: &Anchor, id: &str, written: &str, right: &str) -> Break {
        let seq = rest[0].seq;
        for other in &rest[1..] {
            if let LinkBody::Kept { event_id, digest, hash, .. } = &other.body
                && link(&self.at.hash, digest) == *hash
            {
                return Break::Reordered(seq, other.seq, event_id.clone());
            }
        }
        // Whether what follows was built on the right link: then only this seal is wrong.
        let follows = match rest.get(1).map(|next| &next.body) {
            Some(LinkBody::Kept { digest, hash, .. }) => link(right, digest) == *hash,
            Some(LinkBody::Removed(_)) => false,
            None => head.seq == seq && head.hash == right && head.hash != written,
        };
        match follows {
            true => Break::Forged(seq, id.to_owned()),
            false => Break::Changed(seq, id.to_owned()),
        }
    }
}

impl Link {
    /// A row as it is found.
    pub fn kept(seq: i64, facts: &Facts<'_>, hash: String) -> Self {
        let (event_id, digest) = (facts.event_id.to_owned(), facts.digest());
        let removal = Removal::of(facts);
        Self { seq, body: LinkBody::Kept { event_id, digest, hash, removal } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::genesis;

    fn chain(names: &[&str]) -> (Vec<Link>, Anchor) {
        let mut at = Anchor { seq: 0, hash: genesis("w") };
        let mut links = Vec::new();
        for name in names {
            let digest = genesis(name);
            at = Anchor { seq: at.seq + 1, hash: link(&at.hash, &digest) };
            let (event_id, hash) = ((*name).to_owned(), at.hash.clone());
            let body = LinkBody::Kept { event_id, digest, hash, removal: None };
            links.push(Link { seq: at.seq, body });
        }
        (links, at)
    }

    fn walk(links: &[Link], head: &Anchor) -> Result<(), Break> {
        let mut walk = Walk::from(Anchor { seq: 0, hash: genesis("w") });
        walk.follow(links, head, false, None)
    }

    fn edit(links: &mut [Link], at: usize, change: impl Fn(&mut String, &mut String)) {
        if let LinkBody::Kept { digest, hash, .. } = &mut links[at].body {
            change(digest, hash);
        }
    }

    /// R30
    #[test]
    fn each_way_to_break_a_chain_is_told_apart() {
        let (whole, head) = chain(&["a", "b", "c", "d"]);
        assert_eq!(walk(&whole, &head), Ok(()));
        for at in 0..4 {
            let (seq, name) = (whole[at].seq, ["a", "b", "c", "d"][at].to_owned());
            let mut changed = whole.clone();
            edit(&mut changed, at, |digest, _| *digest = genesis("z"));
            assert_eq!(walk(&changed, &head), Err(Break::Changed(seq, name.clone())));
            let mut forged = whole.clone();
            edit(&mut forged, at, |_, hash| *hash = genesis("z"));
            assert_eq!(walk(&forged, &head), Err(Break::Forged(seq, name)));
            let mut missing = whole.clone();
            missing.remove(at);
            assert_eq!(walk(&missing, &head), Err(Break::Missing(seq)));
            let mut removed = whole.clone();
            edit(&mut removed, at, |_, _| {});
            let LinkBody::Kept { digest, .. } = removed[at].body.clone() else { unreachable!() };
            removed[at].body = LinkBody::Removed(digest);
            assert_eq!(walk(&removed, &head), Ok(()), "removed by retention");
            removed[at].body = LinkBody::Removed(genesis("z"));
            assert!(walk(&removed, &head).is_err(), "a tombstone of another row");
        }
        let mut swapped = whole.clone();
        (swapped[1].seq, swapped[2].seq) = (3, 2);
        swapped.swap(1, 2);
        assert_eq!(walk(&swapped, &head), Err(Break::Reordered(2, 3, "b".to_owned())));
        let (longer, longer_head) = chain(&["a", "b", "c", "d", "e"]);
        assert_eq!(walk(&longer, &head), Err(Break::Unknown(5, "e".to_owned())));
        assert_eq!(walk(&whole, &longer_head), Err(Break::Missing(5)));
        let other = Anchor { hash: genesis("z"), ..head.clone() };
        assert_eq!(walk(&whole, &other), Err(Break::Head(4)));
        // A chain that is whole, but not the one that was noted.
        let (rewritten, new_head) = chain(&["a", "z", "c", "d"]);
        let mut walk = Walk::from(Anchor { seq: 0, hash: genesis("w") });
        let noted = Anchor { seq: 3, hash: whole_hash(&whole, 2) };
        assert_eq!(walk.follow(&rewritten, &new_head, false, Some(&noted)), Err(Break::Head(3)));
    }

    fn whole_hash(links: &[Link], at: usize) -> String {
        match &links[at].body {
            LinkBody::Kept { hash, .. } => hash.clone(),
            LinkBody::Removed(_) => unreachable!("a whole chain"),
        }
    }
}
