"""What goes wrong for people who chain machines, by short names, and which tests show what DaisyChain does about it.

A test that is renamed or dropped is to be replaced here too: each kind of trouble keeps at least one.
"""

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

NETWORK: Mapping[str, tuple[str, ...]] = {
    "the own name stands for 127.0.1.1": (
        "chain/test_doctor.py::test_names_at_127_0_1_1_and_docker0_lead_nobody_astray",
        "chain/test_doctor.py::test_the_way_to_a_machine_that_is_not_in_the_chain",
        "agent/test_ranks.py::test_a_rank_is_told_its_place_and_starts_in_its_work_folder",
        "agent/test_peer.py::test_what_a_name_stands_for",
    ),
    "gloo's mesh fails and names nobody": (
        "chain/test_doctor.py::test_a_way_that_closes_before_gloo_connects_ends_the_run_within_30_s_naming_the_pair",
        "agent/test_mesh.py::test_the_pair_that_can_not_connect_is_named_with_both_nics_and_what_opens_the_way",
        "agent/test_conductor.py::test_ranks_that_gloo_can_not_connect_end_the_run_naming_node_nic_and_peer",
        "agent/test_conductor.py::test_a_first_generation_that_can_not_connect_ends_the_run_naming_the_pair",
        "machine/test_nics_machines.py::test_the_best_nic_is_chosen_and_the_reason_told",
    ),
    "two NICs in one subnet": (
        "chain/test_discovery.py::test_of_two_nics_in_one_subnet_one_is_taken_and_why_is_said",
        "machine/test_nics_machines.py::test_the_best_nic_is_chosen_and_the_reason_told",
        "machine/test_nics.py::test_two_wired_nics_in_one_subnet_are_mentioned",
    ),
    "docker's address is announced": (
        "chain/test_discovery.py::test_a_head_is_found_by_its_one_address_and_its_name_cut_at_a_character",
        "discovery/test_mdns.py::test_a_record_fits_whatever_the_name",
        "link/test_session.py::test_another_node_at_a_known_address_is_refused",
    ),
    "macOS beside Linux": ("agent/test_preflight.py::test_a_refusal_names_the_node_the_reason_and_the_remedy",),
    "another torch": (
        "agent/test_preflight.py::test_a_refusal_names_the_node_the_reason_and_the_remedy",
        "agent/test_preflight.py::test_the_second_decimal_of_a_version_is_a_number_not_a_digit",
    ),
    "WSL behind address translation": (
        "machine/test_nics_machines.py::test_the_best_nic_is_chosen_and_the_reason_told",
        "agent/test_preflight.py::test_a_closed_path_into_wsl_names_mirrored_networking",
    ),
    "Windows": (
        "agent/test_ranks.py::test_torch_on_windows_is_told_to_do_without_libuv",
        "agent/test_membership.py::test_on_windows_joining_is_refused_in_a_sentence",
        "agent/test_membership.py::test_on_windows_nobody_is_invited",
        "agent/test_preflight.py::test_windows_trains_alone_but_in_no_chain",
    ),
    "macOS asks before it lets a program talk to neighbours": (
        "link/test_client.py::test_a_mac_that_may_not_talk_to_its_neighbours_names_the_switch",
        "agent/test_preflight.py::test_a_mac_that_dials_is_told_of_its_own_switch_too",
        "agent/test_peer.py::test_each_outcome_names_the_machine_the_cause_and_the_remedy",
    ),
    "no multicast": (
        "chain/test_discovery.py::test_without_multicast_it_is_explained_and_once_one_side_connects_both_list_each_other",
        "agent/test_membership.py::test_a_search_without_result_explains_multicast_and_offers_an_address",
        "tui/screens/test_join.py::test_without_heads_it_looks_and_after_a_while_explains",
        "tui/screens/test_join.py::test_an_address_can_be_typed",
    ),
    "the mDNS port or the multicast group can't be had": (
        "discovery/test_mdns.py::test_a_failed_start_is_a_verdict",
        "discovery/test_mdns.py::test_a_port_that_somebody_keeps_to_itself_is_a_verdict",
        "discovery/test_mdns.py::test_an_interface_without_multicast_is_a_verdict",
        "agent/test_membership.py::test_doctor_says_that_mdns_does_not_work_and_goes_on",
    ),
    "Tailscale": (
        "agent/test_membership.py::test_machines_of_the_tailnet_that_answer_are_listed_once",
        "discovery/test_tailscale.py::test_peers_that_are_online_are_candidates_by_name",
        "agent/test_relays.py::test_a_relayed_way_is_warned_of_once_with_the_measured_speed",
        "plan/test_networks.py::test_who_does_not_fit_is_named_with_the_reason_and_the_remedy",
    ),
    "one sees the other but not the other way round": (
        "chain/test_discovery.py::test_without_multicast_it_is_explained_and_once_one_side_connects_both_list_each_other",
        "chain/test_doctor.py::test_a_firewall_on_either_side_is_seen_and_refused_only_where_gloo_needs_the_way",
    ),
    "long and foreign host names": (
        "chain/test_discovery.py::test_a_head_is_found_by_its_one_address_and_its_name_cut_at_a_character",
        "machine/test_probe.py::test_host_names",
        "discovery/test_roster.py::test_any_text_becomes_a_safe_name_and_stays_one",
    ),
    "torch's usual port is taken": (
        "chain/test_doctor.py::test_a_run_takes_no_fixed_port",
        "link/test_session.py::test_a_taken_port_is_said",
    ),
    "a firewall": (
        "chain/test_doctor.py::test_a_firewall_on_either_side_is_seen_and_refused_only_where_gloo_needs_the_way",
        "chain/test_chain.py::test_a_firewall_is_named_before_any_rank_starts",
    ),
    "large packets vanish": ("chain/test_doctor.py::test_a_hole_for_large_packets_is_named_with_what_closes_it",),
    "IPv6 only, or a self-given address first": (
        "chain/test_doctor.py::test_an_address_that_gloo_can_not_use_is_named_at_once",
        "agent/test_membership.py::test_where_no_nic_leads_out_a_head_that_can_not_be_reached_is_no_riddle",
        "link/test_client.py::test_why_an_agent_did_not_start_is_the_commands_error",
    ),
    "a cable is pulled": (
        "chain/test_chain.py::test_a_cut_cable_is_lost_and_mended_by_itself",
        "chain/test_recovery.py::test_a_pulled_cable_is_noticed_and_the_node_is_in_again_once_it_is_back",
    ),
}

MACHINES: Mapping[str, tuple[str, ...]] = {
    "more machines are slower": (
        "plan/test_advice.py::test_on_wifi_a_larger_batch_a_cable_and_local_steps_would_help",
        "plan/test_advice.py::test_a_run_that_loses_is_refused_unless_it_is_wanted_anyway",
        "agent/test_conductor.py::test_a_run_that_is_forecast_to_lose_ends_before_its_first_step",
    ),
    "unequal numbers of batches": (
        "chain/test_chain.py::test_a_script_runs_over_all_three",
        "train/test_batches.py::test_every_sample_is_taken_exactly_once_an_epoch",
        "train/test_batches.py::test_a_rank_without_samples_gets_one_that_does_not_count",
    ),
    "models that differ or branch": (
        "train/test_ranks.py::test_ranks_that_build_different_models_say_so_before_the_first_step",
        "train/test_crew.py::test_ranks_that_differ_are_told_alike_which_and_in_what",
        "train/test_reducer.py::test_parameters_that_some_ranks_use_get_the_sum_everywhere",
        "train/test_reducer.py::test_parameters_that_nobody_uses_keep_no_gradient",
    ),
    "data that one machine lacks": (
        "agent/test_ranks.py::test_missing_files_are_fetched_once_and_a_part_is_gone_on_with",
        "agent/test_ranks.py::test_content_that_is_another_is_refused",
        "agent/test_bundles.py::test_kept_data_that_was_damaged_is_named_and_dropped_so_that_it_comes_anew",
        "agent/test_bundles.py::test_named_data_that_is_not_there_is_named",
    ),
    "one thread by default": (
        "train/test_bench.py::test_so_many_threads_are_taken_as_are_worth_it",
        "machine/test_capacity.py::test_a_child_is_measured",
        "agent/test_ranks.py::test_a_rank_is_told_its_place_and_starts_in_its_work_folder",
    ),
    "gloo knows no Apple GPU": ("plan/test_checks.py::test_a_mac_says_why_its_gpu_is_left_alone",),
    "a laptop gets hot": (
        "train/test_balance_simulated.py::test_a_new_speed_is_followed_within_20_steps_and_then_left_alone",
        "train/test_balance_simulated.py::test_a_slow_drift_is_followed_while_it_lasts",
        "agent/test_heat.py::test_an_agent_looks_during_runs_only_and_tells_head_screen_and_log",
        "agent/test_node_side.py::test_a_note_about_the_node_reaches_the_head_as_its_ranks",
        "tui/presentation/test_everywhere.py::test_every_state_has_a_sign_a_word_and_a_colour",
        "plan/test_checks.py::test_what_is_wrong_names_the_node_the_cause_and_the_remedy",
    ),
    "a laptop falls asleep": (
        "agent/test_node_side.py::test_a_machine_is_kept_awake_from_its_first_rank_to_the_runs_end",
        "machine/test_awake.py::test_each_system_has_its_own_tool_or_none",
        "plan/test_checks.py::test_what_is_wrong_names_the_node_the_cause_and_the_remedy",
    ),
    "an old processor": (
        "run/test_failure.py::test_a_processor_that_is_known_to_lack_an_instruction_is_told_which",
        "agent/test_conductor.py::test_a_rank_whose_machine_lacks_an_instruction_is_not_started_again",
        "plan/test_checks.py::test_an_old_processor_on_which_torch_does_not_run_is_refused_with_what_it_lacks",
    ),
    "out of memory": (
        "run/test_failure.py::test_a_killed_rank_says_what_memory_it_held_and_how_to_cap_it",
        "agent/test_ranks.py::test_a_killed_rank_comes_with_the_memory_it_held_and_whether_the_kernel_did_it",
        "machine/test_condition.py::test_what_the_kernel_killed_for_want_of_memory_is_counted",
        "plan/test_checks.py::test_what_is_wrong_names_the_node_the_cause_and_the_remedy",
    ),
    "a GPU's driver is too old": (
        "machine/test_gpus.py::test_gpu",
        "agent/test_conductor.py::test_gpus_get_a_rank_each_and_one_that_is_left_out_is_said",
        "agent/test_doctor.py::test_a_machine_whose_gpus_can_not_be_used_says_what_it_trains_on",
    ),
    "an old glibc": (
        "plan/test_checks.py::test_a_machine_without_torch_is_told_the_one_that_works_there",
        "plan/test_checks.py::test_an_old_glibc_can_not_follow_the_others_so_they_follow_it",
    ),
    "a full disk on a worker": (
        "chain/test_strangers.py::test_a_full_disk_on_a_worker_is_named",
        "agent/test_conductor.py::test_a_disk_that_takes_no_files_refuses_the_run_and_names_the_node",
    ),
}


@pytest.mark.parametrize("name", [*NETWORK, *MACHINES])
def test_what_goes_wrong_is_shown_by_tests_that_are_there(name: str) -> None:
    shown_by = {**NETWORK, **MACHINES}[name]
    assert shown_by
    for test in shown_by:
        file, _, function = test.partition("::")
        assert function in functions(TESTS / file), f"{test} is not there"


def functions(file: Path) -> set[str]:
    """The names of a module's tests."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return {part.name for part in body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
