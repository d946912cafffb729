//! The repository controller's loop.

use std::sync::Arc;

use api::{TerraformLayer, TerraformRepository, TerraformRepositoryStatus};
use engine::Wake;
use engine::repository::{Effect, Observed, count, decide};
use kube::{Api, ResourceExt};

use crate::error::{Error, doing};
use crate::feed::Handle;
use crate::source::Place;
use crate::{Context, readable, status};

pub(crate) async fn reconcile(
    repository: Arc<Handle<TerraformRepository>>,
    context: Arc<Context>,
) -> Result<Wake, Error> {
    let namespace = repository.namespace().unwrap_or_default();
    let api = Api::<TerraformRepository>::namespaced(context.client.clone(), &namespace);
    let Some(repository) = api.get_opt(&repository.name_any()).await.map_err(doing("read the repository"))?
    else {
        return Ok(Wake::OnChange);
    };
    let layers = observe_layers(&repository, &namespace, &context).await?;
    let wanted = layers.iter().filter_map(|layer| layer.spec.branch.clone()).collect();
    let place = Place::of(&repository);
    let (look, looking) = context.desk.look(&place);
    let decision = decide(&Observed {
        now: (context.now)(),
        repository: &repository,
        wanted: &wanted,
        layers: count(&layers),
        look: look.as_ref(),
        looking,
        jitter: engine::schedule::share(&place.uid),
        settings: &context.settings,
    });
    for effect in decision.effects {
        match effect {
            Effect::Look { answers, asked } => context.desk.look_again(&place, answers, asked),
        }
    }
    let before = repository.status.as_ref().map_or(&[][..], |status| &status.conditions);
    apply_status(&api, &repository, decision.status.clone()).await?;
    context.events.tell(&repository, before, &decision.status.conditions);
    Ok(decision.wake)
}

/// The layers of the namespace that use this repository. O(layers of the namespace).
async fn observe_layers(
    repository: &TerraformRepository,
    namespace: &str,
    context: &Context,
) -> Result<Vec<TerraformLayer>, Error> {
    let layers = readable::list::<TerraformLayer>(&context.client, namespace, &context.events);
    let layers = layers.await.map_err(doing("list the layers of the repository"))?;
    let name = repository.name_any();
    let follows =
        |layer: &TerraformLayer| layer.spec.repository_name().is_some_and(|known| known.as_str() == name);
    Ok(layers.into_iter().filter(follows).collect())
}

async fn apply_status(
    api: &Api<TerraformRepository>,
    repository: &TerraformRepository,
    next: TerraformRepositoryStatus,
) -> Result<(), Error> {
    if repository.status.as_ref() == Some(&next) {
        return Ok(());
    }
    let mut changed = repository.clone();
    changed.status = Some(next);
    status::replace(api, &changed, "write the repository's status").await.map(drop)
}
