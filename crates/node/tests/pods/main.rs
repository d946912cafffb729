//! Pods on the process node, over the API that Terrane brings along and over a real kube-apiserver: the same cases,
//! with the same assertions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod cases;
mod harness;

/// The API in this process, with a directory of its own.
async fn embedded_api() -> (embedded::serve::Server, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let mut options = embedded::serve::Options::new(directory.path().join("data"));
    options.listen = embedded::serve::Listen::on_any_port();
    (embedded::serve::Server::start(options).await.unwrap(), directory)
}

macro_rules! on_every_api {
    ($($case:ident),+ $(,)?) => {
        mod on_the_embedded_api {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let (server, _directory) = super::embedded_api().await;
                    super::cases::$case(server.client(embedded::auth::Identity::administrator())).await;
                    server.stop().await;
                }
            )+
        }

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
    the_environment_comes_from_where_the_pod_says,
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

/// A real cluster has a job controller of its own, so this one is tried where there is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_carried_out_on_an_api_without_a_job_controller() {
    let (server, _directory) = embedded_api().await;
    cases::jobs_are_carried_out(server.client(embedded::auth::Identity::administrator())).await;
    server.stop().await;
}
