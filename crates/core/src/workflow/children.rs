//! Child runs: started by a record, awaited by another.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;

use futures::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Cx, Operation, Workflow};
use crate::driver::{Ask, ChildStart};
use crate::error::Result;
use crate::{json, key};

impl Cx {
    /// Starts a child run and gives its handle. The child is cancelled with its parent unless it is
    /// detached.
    pub fn spawn<W, M>(&self, workflow: W, input: W::Input) -> Spawn<W::Output>
    where
        W: Workflow<M>,
    {
        match workflow.name() {
            Ok(name) => self.spawn_named(name, &input),
            Err(refusal) => self.spawned(Operation::refused(refusal)),
        }
    }

    /// Starts a child run by its workflow's name, which some worker must know.
    pub fn spawn_named<T>(&self, workflow: &str, input: &(impl Serialize + ?Sized)) -> Spawn<T> {
        let operation = match json::encode("the child's input", input) {
            Err(refusal) => Operation::refused(refusal),
            Ok(input) => {
                let start = ChildStart {
                    run_id: String::new(),
                    workflow: workflow.to_owned(),
                    input: input.clone(),
                    queue: None,
                    detached: false,
                };
                self.operation(workflow, Some(input), Ask::Spawn(start))
            }
        };
        self.spawned(operation)
    }

    /// A child with the id that follows from its place in the code.
    fn spawned<T>(&self, operation: Operation<String>) -> Spawn<T> {
        let spawn = Spawn { cx: self.clone(), operation, output: PhantomData };
        let Some(id) = spawn.operation.id() else {
            return spawn;
        };
        let meta = &self.shared.meta;
        // The generation keeps a run that continued as new from meeting its earlier children.
        let place = match meta.generation {
            0 => format!("/{id}"),
            n => format!("/{n}.{id}"),
        };
        spawn.id(key::derived(&meta.run_id, &place))
    }

    /// Runs a child to its end and gives its result.
    pub fn child<W, M>(
        &self,
        workflow: W,
        input: W::Input,
    ) -> impl Future<Output = Result<W::Output>> + Send + use<W, M>
    where
        W: Workflow<M>,
    {
        let spawned = self.spawn(workflow, input);
        async move { spawned.await?.result().await }
    }
}

/// A child about to be started.
#[must_use = "a child is not started until this is awaited"]
pub struct Spawn<T> {
    cx: Cx,
    operation: Operation<String>,
    output: PhantomData<fn() -> T>,
}

impl<T> Spawn<T> {
    /// Gives the child an id of its own instead of the derived one.
    pub fn id(self, run_id: impl Into<String>) -> Self {
        let run_id = run_id.into();
        self.with(|start| start.run_id = run_id)
    }

    /// Puts the child on a queue.
    pub fn queue(self, queue: impl Into<String>) -> Self {
        let queue = queue.into();
        self.with(|start| start.queue = Some(queue))
    }

    /// Lets the child live on when its parent is cancelled.
    pub fn detached(self) -> Self {
        self.with(|start| start.detached = true)
    }

    fn with(mut self, set: impl FnOnce(&mut ChildStart)) -> Self {
        self.operation.change(|ask| {
            if let Ask::Spawn(start) = ask {
                set(start);
            }
        });
        self
    }
}

impl<T: Send + 'static> IntoFuture for Spawn<T> {
    type Output = Result<Child<T>>;
    type IntoFuture = BoxFuture<'static, Result<Child<T>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let run_id = self.operation.await?;
            Ok(Child { cx: self.cx, run_id, output: PhantomData })
        })
    }
}

/// A started child.
pub struct Child<T> {
    cx: Cx,
    run_id: String,
    output: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Child<T> {
    /// The child's run id.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Waits for the child's result.
    pub fn result(&self) -> Operation<T> {
        let ask = Ask::Join { run_id: self.run_id.clone() };
        self.cx.operation("join", None, ask)
    }
}
