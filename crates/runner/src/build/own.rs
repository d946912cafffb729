//! Our own builder: the files of the commit are one layer over a base. Nothing of them is unpacked or executed.

use sources::oci::Pushed;
use tofu::process::Wish;

use super::{Site, failed, stopped};
use crate::attempt::Work;
use crate::ending::Step;

pub(super) async fn build(work: &Work<'_>, site: &Site<'_>) -> Step<Pushed> {
    let image = &site.order.image;
    let bundle = work.fetch_bundle().await?;
    work.log.line(&format!("Building {image} of commit {}.", work.description.revision));
    let mut stop = work.surroundings.stop.clone();
    let asked_to = async move {
        if stop.wait_for(|wish| *wish == Wish::Stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        pushed = site.images.build(image, &bundle, site.logins) => pushed.map_err(|error| failed(&error)),
        () = asked_to => Err(stopped()),
    }
}
