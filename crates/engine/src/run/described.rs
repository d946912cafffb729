//! An attempt that was described before a crash and never written down: no pod was made for it, so nothing of it began.
//!
//! A description is written once. What the layer says may have changed since, such as whether its workspace is to be deleted in the end; then
//! the stored description stands, as if the change had come a moment later.

use api::attempt::{BuildOrder, Description, GivenInputs};

/// Whether the stored description is of the very attempt that is to begin: everything that a promise rests on is the same. What
/// only says how the work is done may differ.
pub(super) fn is_of(stored: &Description, wanted: &Description) -> bool {
    let Description {
        namespace,
        layer,
        layer_uid,
        run,
        run_uid,
        attempt,
        fence,
        action,
        mode,
        revision,
        bundle: _,
        image,
        build,
        // What the run itself says of them is the same. A run from before it said so may have been described with others, and the
        // runner finds out whether the plan is for those.
        path: _,
        workspace: _,
        tool: _,
        tool_version: _,
        terragrunt: _,
        state,
        backend,
        plan,
        inputs,
        outputs,
        // Whether a script is to be run again; what was planned on it counts.
        script: _,
        kept,
        // What is left once everything is destroyed.
        delete_workspace: _,
        // How long the work may take is not what the work is.
        timeout: _,
    } = stored;
    // By the digest: the rest follows from it, and the runner checks that.
    let digest = |inputs: &Option<GivenInputs>| inputs.as_ref().map(|given| given.digest.clone());
    // How registries are reached may be another way by now.
    let image_of = |order: &Option<BuildOrder>| order.as_ref().map(|order| order.image.clone());
    namespace == &wanted.namespace
        && layer == &wanted.layer
        && layer_uid == &wanted.layer_uid
        && run == &wanted.run
        && run_uid == &wanted.run_uid
        && attempt == &wanted.attempt
        && fence == &wanted.fence
        && action == &wanted.action
        && mode == &wanted.mode
        && revision == &wanted.revision
        && image == &wanted.image
        && image_of(build) == image_of(&wanted.build)
        && state == &wanted.state
        && backend == &wanted.backend
        && plan == &wanted.plan
        && digest(inputs) == digest(&wanted.inputs)
        && outputs == &wanted.outputs
        && kept == &wanted.kept
}
