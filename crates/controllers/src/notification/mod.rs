//! The loop of notifications: what it reads, and the decision on it. What happened comes from the [`Board`], which hears it from the watches
//! that are there anyway; what is sent goes through the [`Outbox`], whose tasks no reconcile waits for.

mod board;
mod outbox;
mod post;
mod receiver;
pub mod reply;
mod smtp;

use std::sync::Arc;

use api::TerraformNotification;
use engine::Wake;
use engine::notification::{Observed, decide, words};
use kube::{Api, ResourceExt};

pub use board::Board;
pub use outbox::Outbox;
pub(crate) use receiver::Channel;

use crate::error::{Error, doing};
use crate::feed::Handle;
use crate::{Context, status};

pub(crate) async fn reconcile(
    notification: Arc<Handle<TerraformNotification>>,
    context: Arc<Context>,
) -> Result<Wake, Error> {
    let (namespace, name) = (notification.namespace().unwrap_or_default(), notification.name_any());
    // Before anything is read, so that nothing after that is missed.
    context.board.follow(&namespace, &name);
    let api = Api::<TerraformNotification>::namespaced(context.client.clone(), &namespace);
    let found = api.get_opt(&name).await.map_err(doing("read the notification"))?;
    let Some(mut notification) = found else {
        context.board.unfollow(&namespace, &name);
        context.outbox.forget(&notification.uid().unwrap_or_default());
        return Ok(Wake::OnChange);
    };
    let uid = notification.uid().unwrap_or_default();
    let receiver = receiver::read(&context, &notification).await?;
    let (facts, labels) = context.board.known(&namespace);
    let decision = decide(&Observed {
        now: (context.now)(),
        notification: &notification,
        facts: &facts,
        labels: &labels,
        tried: &context.outbox.tried(&uid),
        receiver: receiver.as_ref().map(drop).map_err(Clone::clone),
    });
    if notification.status.as_ref() != Some(&decision.status) {
        notification.status = Some(decision.status);
        notification = status::replace(&api, &notification, "write the notification's status").await?;
        for note in decision.notes {
            context.events.tell_of(&notification, note);
        }
    }
    // Only now: what is over is known by the status.
    context.outbox.keep(&uid, &decision.open);
    if let Ok(receiver) = receiver {
        let receiver = Arc::new(receiver);
        context.metrics.notifications_given_up(receiver.channel(), decision.given_up);
        for fact in decision.send {
            let words = words(&fact, notification.spec.template.as_ref());
            context.outbox.post(outbox::Letter::new(&notification, &receiver, &fact, &words));
        }
    }
    Ok(decision.wake)
}
