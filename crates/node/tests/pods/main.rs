//! Pods on the process node, over the API that Terrane brings along and over a real kube-apiserver: the same cases,
//! with the same assertions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod cases;
mod harness;

macro_rules! on_every_api {
    ($($case:ident),+ $(,)?) => {
        mod on_a_real_cluster {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let client = testkit::cluster::RealCluster::shared().await.client().unwrap();
                    super::cases::$case(client).await;
                }
            )+
        }
    };
}

on_every_api!(
    a_pod_runs_once_and_tells_how_it_ended,
    volumes_hold_what_the_api_has,
    a_token_is_renewed_in_place,
    init_containers_come_first_and_in_order,
    a_failing_container_is_restarted_and_backs_off,
    what_is_missing_is_waited_for,
    deletion_asks_then_waits_then_kills,
    the_deadline_ends_a_pod,
    a_crash_of_the_node_loses_nothing_and_repeats_nothing,
    the_death_of_a_shim_ends_its_container_and_is_told,
    a_pod_with_its_own_user_cannot_reach_others,
    a_confined_pod_cannot_reach_others,
    a_full_node_makes_pods_wait,
    pods_of_one_directory_see_the_same_paths,
    the_node_is_registered_and_alive,
    a_status_is_written_only_when_it_changes,
);
