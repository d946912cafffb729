//! The lock of a state: a Lease in the system namespace whose `leaseTransitions` is the fence. It never expires by time: a
//! holder that is silent may still be changing infrastructure. It is never given back either: that its holder is done is read from the
//! holder's own record by whoever wants the lock next.

use api::{SYSTEM_NAMESPACE, TerraformRun, label};
use engine::Read;
use engine::names;
use engine::run::{Lock, can_still_work, is_done_with};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ListParams, PostParams};
use kube::core::ObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use crate::Context;
use crate::error::{Error, doing};
use crate::feed::Handle;

/// On the Lease: the run that holds it, so that its change wakes that run, and its record can be found.
const HOLDER_NAMESPACE: &str = "terrane.dev/holder-namespace";
const HOLDER_NAME: &str = "terrane.dev/holder-name";

fn leases(context: &Context) -> Api<Lease> {
    Api::namespaced(context.client.clone(), SYSTEM_NAMESPACE)
}

pub(super) async fn read(run: &TerraformRun, context: &Context) -> Result<Read<Lock>, Error> {
    let lease = leases(context)
        .get_opt(&names::lease(&run.spec.state))
        .await
        .map_err(doing("read the state's lock"))?;
    let Some(lease) = lease else { return Ok(Read::Absent) };
    let holder_is_done = match holder_of(&lease) {
        Some(holder) if Some(&holder) != run.uid().as_ref() => is_done(&lease, &holder, context).await?,
        Some(_) | None => false,
    };
    Ok(Read::Present(Lock { holder: holder_of(&lease), fence: fence_of(&lease), holder_is_done }))
}

fn holder_of(lease: &Lease) -> Option<String> {
    lease.spec.as_ref()?.holder_identity.clone().filter(|holder| !holder.is_empty())
}

fn fence_of(lease: &Lease) -> u64 {
    let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
    u64::try_from(transitions.unwrap_or_default()).unwrap_or_default()
}

/// Whether the run that took a lock has recorded the end of what it took it for, or exists no more, and none of its pods can still
/// work. A lock that does not say whose it is proves nothing. O(pods of one run).
async fn is_done(lease: &Lease, holder: &str, context: &Context) -> Result<bool, Error> {
    let annotations = lease.annotations();
    let (Some(namespace), Some(name)) = (annotations.get(HOLDER_NAMESPACE), annotations.get(HOLDER_NAME))
    else {
        return Ok(false);
    };
    let runs = Api::<TerraformRun>::namespaced(context.client.clone(), namespace);
    let run = runs.get_opt(name).await.map_err(doing("read the run that holds the state's lock"))?;
    let run = run.filter(|run| run.uid().as_deref() == Some(holder));
    if run.is_some_and(|run| !is_done_with(&run, fence_of(lease))) {
        return Ok(false);
    }
    let of_holder = ListParams::default().labels(&format!("{}={holder}", label::RUN_UID));
    let pods = Api::<Pod>::namespaced(context.client.clone(), namespace)
        .list(&of_holder)
        .await
        .map_err(doing("list the pods of the run that held the state's lock"))?;
    Ok(!pods.items.iter().any(can_still_work))
}

/// Takes the lock only if it is still as it was seen: taken last by `from`, under this fence. The fence grows by one. A race is lost
/// by a conflict, never by overwriting.
pub(super) async fn take(
    name: &str,
    from: Option<&str>,
    fence: u64,
    run: &TerraformRun,
    context: &Context,
) -> Result<(), Error> {
    let api = leases(context);
    let found = api.get_opt(name).await.map_err(doing("read the state's lock"))?;
    let spec = |fence: i32| LeaseSpec {
        holder_identity: run.uid(),
        acquire_time: Some(MicroTime((context.now)())),
        lease_transitions: Some(fence),
        ..LeaseSpec::default()
    };
    let holder = [
        (HOLDER_NAMESPACE.to_owned(), run.namespace().unwrap_or_default()),
        (HOLDER_NAME.to_owned(), run.name_any()),
    ];
    match found {
        None => {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(name.to_owned()),
                    labels: Some([(label::MANAGED_BY.to_owned(), "terrane".to_owned())].into()),
                    annotations: Some(holder.into()),
                    ..ObjectMeta::default()
                },
                spec: Some(spec(1)),
            };
            api.create(&PostParams::default(), &lease).await.map_err(doing("take the state's lock"))?;
        }
        Some(mut lease) => {
            if (holder_of(&lease).as_deref(), fence_of(&lease)) != (from, fence) {
                return Ok(());
            }
            lease.spec = Some(spec(i32::try_from(fence.saturating_add(1)).unwrap_or(i32::MAX)));
            lease.annotations_mut().extend(holder);
            api.replace(name, &PostParams::default(), &lease)
                .await
                .map_err(doing("take the state's lock"))?;
        }
    }
    Ok(())
}

/// The run that a change of the Lease concerns: its holder. Runs that wait are woken by the holder's end.
pub(crate) fn waiting_for(lease: Lease) -> Option<ObjectRef<Handle<TerraformRun>>> {
    let annotations = lease.annotations();
    let name = annotations.get(HOLDER_NAME)?;
    let namespace = annotations.get(HOLDER_NAMESPACE)?;
    Some(ObjectRef::new(name).within(namespace))
}
