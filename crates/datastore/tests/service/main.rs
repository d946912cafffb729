//! The service over a real socket, with callers made by a reviewer of ours: on local disk, on a real S3 server, on
//! Azure's own, and on a stand-in for Google's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod beside;
mod buckets;
mod cases;
mod harness;
mod rotation;

use harness::Harness;

/// Each case is a test on local disk, one on S3, one on Azure and one on what stands for Google: the service may not differ.
macro_rules! everywhere {
    ($($module:ident: $($case:ident)*;)*) => {
        mod disk {
            $($(
                #[tokio::test]
                async fn $case() {
                    super::$module::$case(super::Harness::on_disk().await).await;
                }
            )*)*
        }
        mod s3 {
            $($(
                #[tokio::test]
                async fn $case() {
                    super::$module::$case(super::Harness::on_s3().await).await;
                }
            )*)*
        }
        mod google {
            $($(
                #[tokio::test]
                async fn $case() {
                    super::$module::$case(super::Harness::on_google().await).await;
                }
            )*)*
        }
        mod azure {
            $($(
                #[tokio::test]
                async fn $case() {
                    super::$module::$case(super::Harness::on_azure().await).await;
                }
            )*)*
        }
    };
}

#[tokio::test]
async fn who_asks_for_an_old_bundle_makes_it_young() {
    cases::who_asks_for_an_old_bundle_makes_it_young(Harness::on_disk().await).await;
}

everywhere! {
    cases:
        artefacts_are_written_once_and_repeating_is_harmless
        a_run_is_forgotten_whole_and_no_other_with_it
        a_body_that_is_not_what_its_digest_says_is_refused_and_leaves_nothing
        a_large_bundle_streams_through_and_rests_encrypted
        a_bundle_goes_when_it_was_not_used_and_comes_again
        logs_append_in_order_repeat_harmlessly_and_can_be_followed_to_the_end
        a_state_lives_through_locks_versions_and_fences
        many_race_for_a_lock_and_one_wins
        the_audit_is_appended_once_read_back_in_order_and_never_changed
        a_runner_may_do_exactly_what_its_run_needs;
    beside:
        many_race_for_a_lock_over_two_services_and_one_wins
        many_race_to_write_a_state_over_two_services_and_one_wins
        what_one_service_did_to_a_state_the_other_knows
        a_log_goes_on_at_another_service_behind_what_the_first_stored;
    rotation:
        a_new_key_seals_and_older_ones_open_until_everything_is_sealed_anew
        what_was_changed_swapped_or_rolled_back_behind_our_back_is_refused;
}
