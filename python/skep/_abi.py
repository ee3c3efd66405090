"""Written by python/generate.py from include/skep/*.h. Do not edit."""

# mypy: ignore-errors
# fmt: off
from ctypes import (CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p,
                    c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint,
                    c_uint8, c_uint16, c_uint32, c_uint64, c_void_p)
from typing import Any, Dict


class DLDevice(Structure):
    pass


class DLDataType(Structure):
    pass


class DLTensor(Structure):
    pass


class DLManagedTensor(Structure):
    pass


class skep_error(Structure):
    pass


class skep_named_tensor(Structure):
    pass


class skep_tensor_spec(Structure):
    pass


class skep_expert_schema(Structure):
    pass


class skep_expert_options(Structure):
    pass


class skep_parameter_spec(Structure):
    pass


class skep_expert_class(Structure):
    pass


class skep_client_options(Structure):
    pass


class skep_client_stats(Structure):
    pass


class skep_provider(Structure):
    pass


class skep_expert_info(Structure):
    pass


class skep_call_options(Structure):
    pass


class skep_tracked_resource(Structure):
    pass


class skep_grid(Structure):
    pass


class skep_beam_options(Structure):
    pass


class skep_beam_hit(Structure):
    pass


class skep_moe_options(Structure):
    pass


class skep_moe_grads(Structure):
    pass


class skep_moe_choice(Structure):
    pass


class skep_switch_moe_options(Structure):
    pass


class skep_tracker_options(Structure):
    pass


class skep_tracker_stats(Structure):
    pass


class skep_tracker_key_stats(Structure):
    pass


class skep_node_options(Structure):
    pass


class skep_pool_stats(Structure):
    pass


class skep_expert_stats(Structure):
    pass


class skep_node_stats(Structure):
    pass


class skep_plugin(Structure):
    pass


class skep_peer(Structure):
    pass


DLDevice._fields_ = [
    ('device_type', c_int),
    ('device_id', c_int),
]

DLDataType._fields_ = [
    ('code', c_uint8),
    ('bits', c_uint8),
    ('lanes', c_uint16),
]

DLTensor._fields_ = [
    ('data', c_void_p),
    ('device', DLDevice),
    ('ndim', c_int),
    ('dtype', DLDataType),
    ('shape', POINTER(c_int64)),
    ('strides', POINTER(c_int64)),
    ('byte_offset', c_uint64),
]

DLManagedTensor._fields_ = [
    ('dl_tensor', DLTensor),
    ('manager_ctx', c_void_p),
    ('deleter', CFUNCTYPE(None, POINTER(DLManagedTensor))),
]

skep_error._fields_ = [
    ('status', c_int),
    ('retry_after_ms', c_uint32),
    ('outcome_unknown', c_bool),
    ('message', c_char * 512),
]

skep_named_tensor._fields_ = [
    ('name', c_char_p),
    ('tensor', POINTER(DLTensor)),
]

skep_tensor_spec._fields_ = [
    ('name', c_char * 32),
    ('dtype', DLDataType),
    ('ndim', c_int),
    ('shape', c_int64 * 8),
]

skep_expert_schema._fields_ = [
    ('input_count', c_size_t),
    ('inputs', skep_tensor_spec * 8),
    ('output_count', c_size_t),
    ('outputs', skep_tensor_spec * 8),
]

skep_expert_options._fields_ = [
    ('size', c_size_t),
    ('cls', c_char_p),
    ('hidden_dim', c_int64),
    ('seed', c_uint64),
    ('optimizer', c_char_p),
    ('learning_rate', c_double),
    ('beta1', c_double),
    ('beta2', c_double),
    ('eps', c_double),
    ('weight_decay', c_double),
    ('momentum', c_double),
    ('clip_grad_norm', c_double),
    ('schedule', c_char_p),
    ('warmup_steps', c_uint64),
    ('training_steps', c_uint64),
    ('intermediate_dim', c_int64),
    ('padding_mask', c_bool),
    ('max_sequence', c_int64),
    ('float_mask', c_bool),
    ('evaluation', c_bool),
    ('precision', c_char_p),
    ('argument', c_char_p),
]

skep_parameter_spec._fields_ = [
    ('name', c_char * 64),
    ('ndim', c_int),
    ('shape', c_int64 * 4),
    ('init', c_int),
    ('bound', c_float),
]

skep_expert_class._fields_ = [
    ('name', c_char_p),
    ('is_bounded', c_bool),
    ('create', CFUNCTYPE(c_int, POINTER(skep_expert_options), POINTER(c_void_p), POINTER(skep_error))),
    ('destroy', CFUNCTYPE(None, c_void_p)),
    ('describe', CFUNCTYPE(c_int, c_void_p, POINTER(skep_expert_schema), POINTER(skep_error))),
    ('parameters', CFUNCTYPE(c_int, c_void_p, POINTER(skep_parameter_spec), POINTER(c_size_t), POINTER(skep_error))),
    ('forward', CFUNCTYPE(c_int, c_void_p, POINTER(POINTER(c_float)), POINTER(DLTensor), POINTER(DLTensor), POINTER(skep_error))),
    ('backward', CFUNCTYPE(c_int, c_void_p, POINTER(POINTER(c_float)), POINTER(DLTensor), POINTER(DLTensor), POINTER(DLTensor), POINTER(POINTER(c_float)), POINTER(skep_error))),
    ('owns_state', c_bool),
    ('parameter_count', CFUNCTYPE(c_uint64, c_void_p)),
    ('save', CFUNCTYPE(c_int, c_void_p, POINTER(POINTER(skep_named_tensor)), POINTER(c_size_t), POINTER(skep_error))),
    ('load', CFUNCTYPE(c_int, c_void_p, POINTER(skep_named_tensor), c_size_t, POINTER(skep_error))),
]

skep_client_options._fields_ = [
    ('size', c_size_t),
    ('swarm', c_char_p),
    ('swarm_key_path', c_char_p),
    ('identity_path', c_char_p),
    ('initial_peers', POINTER(c_char_p)),
    ('initial_peer_count', c_size_t),
    ('dht_listen', c_char_p),
    ('no_dht', c_bool),
    ('insecure_plaintext', c_bool),
    ('timeout_ms', c_uint32),
    ('max_in_flight', c_uint32),
    ('max_message_bytes', c_uint64),
    ('compression', c_int),
    ('grad_compression', c_int),
    ('hedge_after_ms', c_uint32),
]

skep_client_stats._fields_ = [
    ('calls', c_uint64),
    ('requests', c_uint64),
    ('hedges', c_uint64),
    ('hedge_wins', c_uint64),
    ('not_compressed', c_uint64),
]

skep_provider._fields_ = [
    ('peer_id', c_char * 65),
    ('endpoint', c_char * 266),
    ('cls', c_char * 32),
    ('expires_at', c_int64),
]

skep_expert_info._fields_ = [
    ('uid', c_char * 256),
    ('cls', c_char * 32),
    ('precision', c_char * 32),
    ('peer_id', c_char * 65),
    ('schema', skep_expert_schema),
    ('parameter_count', c_uint64),
    ('update_count', c_uint64),
    ('skipped_steps', c_uint64),
    ('max_batch_size', c_int64),
    ('queued_tasks', c_uint64),
    ('examples_per_second', c_double),
    ('stalled', c_bool),
    ('compression', c_int),
    ('grad_compression', c_int),
]

skep_call_options._fields_ = [
    ('timeout_ms', c_uint32),
    ('request_id', POINTER(c_uint8)),
    ('compression', c_int),
    ('grad_compression', c_int),
    ('hedge_after_ms', c_uint32),
    ('peer_id', c_char_p),
]

skep_tracked_resource._fields_ = [
    ('host', c_char * 266),
    ('port', c_uint16),
    ('tracker', c_char * 266),
    ('tracker_peer_id', c_char * 65),
    ('tracker_endpoint', c_char * 266),
    ('free', c_uint32),
    ('pending', c_uint32),
    ('expires_at', c_int64),
]

skep_grid._fields_ = [
    ('prefix', c_char_p),
    ('dims', c_int),
    ('sizes', c_int64 * 8),
]

skep_beam_options._fields_ = [
    ('size', c_size_t),
    ('k', c_uint32),
    ('beam_width', c_uint32),
    ('timeout_ms', c_uint32),
    ('unchecked', c_bool),
    ('pass_over_failing', c_bool),
]

skep_beam_hit._fields_ = [
    ('uid', c_char_p),
    ('coords', POINTER(c_int64)),
    ('score', c_double),
    ('expert', c_void_p),
]

skep_moe_options._fields_ = [
    ('size', c_size_t),
    ('grid', skep_grid),
    ('k_best', c_uint32),
    ('k_min', c_uint32),
    ('backward_k_min', c_uint32),
    ('beam_width', c_uint32),
    ('forward_timeout_ms', c_uint32),
    ('backward_timeout_ms', c_uint32),
    ('timeout_after_k_min_ms', c_uint32),
    ('detect_anomalies', c_bool),
    ('allow_missing', c_bool),
    ('unchecked', c_bool),
    ('compression', c_int),
    ('grad_compression', c_int),
    ('hedge_after_ms', c_uint32),
    ('max_rows', c_uint32),
    ('out_ndim', c_int),
    ('out_shape', c_int64 * 8),
    ('in_features', c_int64),
    ('projection_dtype', DLDataType),
    ('seed', c_uint64),
]

skep_moe_grads._fields_ = [
    ('x', POINTER(DLManagedTensor)),
    ('scores', POINTER(DLManagedTensor) * 8),
    ('weight', POINTER(DLManagedTensor)),
    ('bias', POINTER(DLManagedTensor)),
]

skep_moe_choice._fields_ = [
    ('uid', c_char_p),
    ('score', c_double),
    ('weight', c_double),
    ('status', c_int),
    ('backward_status', c_int),
]

skep_switch_moe_options._fields_ = [
    ('moe', skep_moe_options),
    ('utilization_alpha', c_double),
    ('jitter_eps', c_double),
    ('grid_keep', c_double),
]

skep_tracker_options._fields_ = [
    ('size', c_size_t),
    ('host', c_char_p),
    ('port', c_uint16),
    ('port_end', c_uint32),
    ('silent', c_bool),
    ('report_interval_s', c_uint32),
    ('reuse_addr', c_bool),
    ('timeout_ms', c_uint32),
    ('max_connections', c_uint),
    ('stop_key', c_char_p),
]

skep_tracker_stats._fields_ = [
    ('connections_open', c_uint64),
    ('connections_accepted', c_uint64),
    ('connections_refused', c_uint64),
    ('protocol_errors', c_uint64),
    ('timeouts', c_uint64),
    ('messages', c_uint64),
    ('servers', c_uint64),
    ('keys', c_uint64),
    ('resources_free', c_uint64),
    ('requests_pending', c_uint64),
    ('puts', c_uint64),
    ('requests', c_uint64),
    ('requests_served', c_uint64),
    ('requests_withdrawn', c_uint64),
    ('requests_undelivered', c_uint64),
    ('wait_us_sum', c_uint64),
    ('wait_us_max', c_uint64),
    ('waits', c_uint64 * 14),
    ('bytes_in', c_uint64),
    ('bytes_out', c_uint64),
]

skep_tracker_key_stats._fields_ = [
    ('key', c_char_p),
    ('key_bytes', c_size_t),
    ('servers', c_uint64),
    ('free', c_uint64),
    ('pending', c_uint64),
    ('puts', c_uint64),
    ('requests', c_uint64),
    ('requests_served', c_uint64),
    ('wait_us_sum', c_uint64),
    ('wait_us_max', c_uint64),
    ('waits', c_uint64 * 14),
]

skep_node_options._fields_ = [
    ('size', c_size_t),
    ('listen', c_char_p),
    ('dht_listen', c_char_p),
    ('announce', c_char_p),
    ('initial_peers', POINTER(c_char_p)),
    ('initial_peer_count', c_size_t),
    ('peers_file', c_char_p),
    ('no_dht', c_bool),
    ('swarm', c_char_p),
    ('swarm_key', c_char_p),
    ('identity', c_char_p),
    ('insecure_plaintext', c_bool),
    ('update_period_s', c_uint32),
    ('max_batch_size', c_int64),
    ('min_batch_size', c_int64),
    ('batch_timeout_ms', c_uint32),
    ('max_queued_tasks', c_size_t),
    ('max_queued_bytes', c_uint64),
    ('stall_timeout_ms', c_uint32),
    ('detect_anomalies', c_bool),
    ('num_handlers', c_uint),
    ('max_connections', c_uint),
    ('max_message_bytes', c_uint64),
    ('drain_timeout_ms', c_uint32),
    ('stats_report_interval_s', c_uint32),
    ('max_memory', c_uint64),
    ('checkpoint_dir', c_char_p),
    ('checkpoint_period_ms', c_uint32),
    ('keep_checkpoints', c_uint),
    ('strict_checkpoints', c_bool),
    ('compression', c_int),
    ('grad_compression', c_int),
    ('no_tracker', c_bool),
    ('tracker_listen', c_char_p),
    ('tracker_port_end', c_uint32),
    ('tracker_any_port', c_bool),
    ('tracker_silent', c_bool),
    ('tracker_report_interval_s', c_uint32),
    ('tracker_reuse_addr', c_bool),
    ('tracker_timeout_ms', c_uint32),
    ('tracker_max_connections', c_uint),
    ('tracker_stop_key', c_char_p),
    ('stop_with_tracker', c_bool),
    ('no_federation', c_bool),
    ('tracker', c_char_p),
    ('tracker_key', c_char_p),
    ('lease_timeout_ms', c_uint32),
    ('lease_silence_ms', c_uint32),
    ('max_connections_per_address', c_uint),
    ('allow_fewer', c_bool),
]

skep_pool_stats._fields_ = [
    ('tasks', c_uint64),
    ('batches', c_uint64),
    ('examples', c_uint64),
    ('refused', c_uint64),
    ('expired', c_uint64),
    ('cancelled', c_uint64),
    ('failed', c_uint64),
    ('busy_us', c_uint64),
    ('wait_us', c_uint64),
    ('work_us', c_uint64),
    ('queued_tasks', c_uint64),
    ('stalled', c_bool),
]

skep_expert_stats._fields_ = [
    ('uid', c_char * 256),
    ('cls', c_char * 32),
    ('precision', c_char * 32),
    ('parameters', c_uint64),
    ('updates', c_uint64),
    ('skipped_steps', c_uint64),
    ('forward', skep_pool_stats),
    ('backward', skep_pool_stats),
]

skep_node_stats._fields_ = [
    ('uptime_ms', c_uint64),
    ('experts', c_uint64),
    ('forward', skep_pool_stats),
    ('backward', skep_pool_stats),
    ('inline_batches', c_uint64),
    ('stalls', c_uint64),
    ('anomalies', c_uint64),
    ('skipped_steps', c_uint64),
    ('connections_open', c_uint64),
    ('connections_accepted', c_uint64),
    ('connections_refused', c_uint64),
    ('handshakes_failed', c_uint64),
    ('protocol_errors', c_uint64),
    ('handshakes_evicted', c_uint64),
    ('calls', c_uint64),
    ('calls_refused', c_uint64),
    ('bytes_in', c_uint64),
    ('bytes_out', c_uint64),
    ('repeats_answered', c_uint64),
    ('repeats_remembered', c_uint64),
    ('dht_peers', c_uint64),
    ('publish_rounds', c_uint64),
    ('publish_rounds_failed', c_uint64),
    ('records_published', c_uint64),
    ('records_failed', c_uint64),
    ('last_publish_unix_s', c_int64),
    ('checkpoints_saved', c_uint64),
    ('checkpoints_failed', c_uint64),
    ('last_checkpoint_unix_s', c_int64),
    ('checkpoint_wait_us', c_uint64),
    ('not_compressed', c_uint64),
    ('tracker', skep_tracker_stats),
    ('tracker_requests_federated', c_uint64),
    ('tracker_records_published', c_uint64),
    ('tracker_records_failed', c_uint64),
    ('registrations', c_uint64),
    ('is_registered', c_bool),
    ('is_leased', c_bool),
    ('leases', c_uint64),
    ('leases_refused', c_uint64),
    ('experts_lost', c_uint64),
    ('experts_stalled', c_uint64),
    ('reachability', c_int),
]

skep_plugin._fields_ = [
    ('abi', c_uint32),
    ('class_count', c_uint32),
    ('classes', POINTER(skep_expert_class)),
]

skep_peer._fields_ = [
    ('peer_id', c_char * 65),
    ('endpoint', c_char * 266),
    ('state', c_char * 16),
    ('version', c_char * 32),
    ('experts', c_uint32),
    ('examples_per_second', c_double),
    ('queued_tasks', c_uint32),
    ('expires_at', c_int64),
    ('reached', c_int),
    ('round_trip_ms', c_double),
    ('has_health', c_bool),
    ('experts_stalled', c_uint32),
    ('dht_peers', c_uint32),
    ('reachability', c_char * 16),
]


SKEP_ABI = 2
SKEP_CANCELLED = 1
SKEP_COMPRESSION_BFLOAT16 = 3
SKEP_COMPRESSION_BLOCKWISE8 = 7
SKEP_COMPRESSION_DEFAULT = 0
SKEP_COMPRESSION_FLOAT16 = 2
SKEP_COMPRESSION_MEANSTD16 = 4
SKEP_COMPRESSION_NONE = 1
SKEP_COMPRESSION_QUANTILE8 = 6
SKEP_COMPRESSION_UNIFORM8 = 5
SKEP_DATA_LOSS = 15
SKEP_DEADLINE_EXCEEDED = 4
SKEP_DL_BOOL = 6
SKEP_ENDPOINT_TEXT_BYTES = 266
SKEP_ERROR_MESSAGE_BYTES = 512
SKEP_EXPERT_ARGUMENT_BYTES = 1024
SKEP_EXPERT_MAX_PARAMETERS = 64
SKEP_EXPERT_MAX_TENSORS = 8
SKEP_EXPERT_NAME_BYTES = 32
SKEP_FAILED_PRECONDITION = 9
SKEP_GRID_MAX_DIMS = 8
SKEP_INIT_ONES = 1
SKEP_INIT_UNIFORM = 2
SKEP_INIT_ZEROS = 0
SKEP_INTERNAL = 13
SKEP_INVALID_ARGUMENT = 3
SKEP_LOG_DEBUG = 3
SKEP_LOG_ERROR = 0
SKEP_LOG_INFO = 2
SKEP_LOG_WARNING = 1
SKEP_NOT_FOUND = 5
SKEP_OK = 0
SKEP_PARAMETER_MAX_DIMS = 4
SKEP_PARAMETER_NAME_BYTES = 64
SKEP_PEER_ID_TEXT_BYTES = 65
SKEP_PERMISSION_DENIED = 7
SKEP_PLUGIN_ABI = 2
SKEP_REACHABILITY_BYTES = 1024
SKEP_REACH_REACHABLE = 1
SKEP_REACH_TCP_BLOCKED = 3
SKEP_REACH_UDP_BLOCKED = 4
SKEP_REACH_UNCHECKED = 2
SKEP_REACH_UNKNOWN = 0
SKEP_REACH_WRONG_ADDRESS = 5
SKEP_REQUEST_ID_BYTES = 16
SKEP_RESOURCE_EXHAUSTED = 8
SKEP_TENSOR_MAX_DIMS = 8
SKEP_TRACKER_WAIT_BUCKETS = 14
SKEP_UID_BYTES = 256
SKEP_UNAUTHENTICATED = 16
SKEP_UNAVAILABLE = 14
SKEP_UNIMPLEMENTED = 12
SKEP_WATCH_APPEARED = 0
SKEP_WATCH_CHANGED = 1
SKEP_WATCH_GONE = 2
kDLBfloat = 4
kDLCPU = 1
kDLCUDA = 2
kDLCUDAHost = 3
kDLCUDAManaged = 13
kDLComplex = 5
kDLExtDev = 12
kDLFloat = 2
kDLInt = 0
kDLMetal = 8
kDLOpaqueHandle = 3
kDLOpenCL = 4
kDLROCM = 10
kDLROCMHost = 11
kDLUInt = 1
kDLVPI = 9
kDLVulkan = 7

# name: (result, arguments)
FUNCTIONS: Dict[str, Any] = {
    'skep_abi': (c_uint, []),
    'skep_beam_options_init': (None, [POINTER(skep_beam_options)]),
    'skep_beam_search_count': (c_size_t, [c_void_p, c_size_t]),
    'skep_beam_search_free': (None, [c_void_p]),
    'skep_beam_search_hit': (c_bool, [c_void_p, c_size_t, c_size_t, POINTER(skep_beam_hit)]),
    'skep_beam_search_outside': (c_size_t, [c_void_p]),
    'skep_beam_search_partial': (c_bool, [c_void_p, POINTER(skep_error)]),
    'skep_beam_search_run': (c_int, [c_void_p, POINTER(skep_grid), POINTER(POINTER(DLTensor)), POINTER(skep_beam_options), POINTER(c_void_p), POINTER(skep_error)]),
    'skep_beam_search_samples': (c_size_t, [c_void_p]),
    'skep_call_cancel': (None, [c_void_p]),
    'skep_call_compression': (c_int, [c_void_p]),
    'skep_call_free': (None, [c_void_p]),
    'skep_call_peer_id': (c_char_p, [c_void_p]),
    'skep_call_result': (c_int, [c_void_p, POINTER(POINTER(DLManagedTensor)), c_size_t, POINTER(c_size_t), POINTER(skep_error)]),
    'skep_call_wait': (c_bool, [c_void_p, c_uint32]),
    'skep_client_expert_at': (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, POINTER(c_void_p), POINTER(skep_error)]),
    'skep_client_find': (c_int, [c_void_p, c_char_p, c_uint32, POINTER(c_void_p), POINTER(skep_error)]),
    'skep_client_find_many': (c_int, [c_void_p, POINTER(c_char_p), c_size_t, c_uint32, POINTER(c_void_p), POINTER(c_int), POINTER(skep_error)]),
    'skep_client_find_resources': (c_int, [c_void_p, c_char_p, c_uint32, POINTER(POINTER(skep_tracked_resource)), POINTER(c_size_t), POINTER(skep_error)]),
    'skep_client_free': (None, [c_void_p]),
    'skep_client_lease_begin': (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_uint32, c_uint32, POINTER(c_void_p), POINTER(skep_error)]),
    'skep_client_lease_duration_ms': (c_uint64, [c_void_p]),
    'skep_client_lease_expert': (c_int, [c_void_p, c_char_p, POINTER(c_void_p), POINTER(skep_error)]),
    'skep_client_lease_free': (None, [c_void_p]),
    'skep_client_lease_renew': (c_int, [c_void_p, c_uint32, c_uint32, POINTER(skep_error)]),
    'skep_client_lease_wait_ended': (c_bool, [c_void_p, c_uint32]),
    'skep_client_new': (c_int, [POINTER(skep_client_options), POINTER(c_void_p), POINTER(skep_error)]),
    'skep_client_not_compressed': (c_uint64, [c_void_p]),
    'skep_client_options_init': (None, [POINTER(skep_client_options)]),
    'skep_client_peer_at': (c_int, [c_void_p, c_char_p, c_uint32, POINTER(skep_peer), POINTER(skep_error)]),
    'skep_client_peer_count': (c_uint, [c_void_p]),
    'skep_client_peer_id': (c_char_p, [c_void_p]),
    'skep_client_peers': (c_int, [c_void_p, c_bool, c_uint32, POINTER(POINTER(skep_peer)), POINTER(c_size_t), POINTER(skep_error)]),
    'skep_client_stats': (None, [c_void_p, POINTER(skep_client_stats)]),
    'skep_client_wait_joined': (c_int, [c_void_p, c_uint32, POINTER(skep_error)]),
    'skep_compression_from_name': (c_bool, [c_char_p, POINTER(c_int)]),
    'skep_compression_name': (c_char_p, [c_int]),
    'skep_dtype_from_name': (c_bool, [c_char_p, POINTER(DLDataType)]),
    'skep_dtype_name': (c_char_p, [DLDataType]),
    'skep_expert_options_init': (None, [POINTER(skep_expert_options)]),
    'skep_expert_options_unset': (None, [POINTER(skep_expert_options)]),
    'skep_expert_seed': (c_uint64, [c_uint64, c_char_p]),
    'skep_log_set': (None, [c_int, CFUNCTYPE(None, c_int, c_char_p, c_void_p), c_void_p]),
    'skep_moe_backward': (c_int, [c_void_p, POINTER(DLTensor), POINTER(skep_moe_grads), POINTER(skep_error)]),
    'skep_moe_bias': (POINTER(DLTensor), [c_void_p]),
    'skep_moe_forward': (c_int, [c_void_p, POINTER(DLTensor), POINTER(POINTER(DLTensor)), POINTER(c_void_p), POINTER(POINTER(DLManagedTensor)), POINTER(skep_error)]),
    'skep_moe_free': (None, [c_void_p]),
    'skep_moe_grads_free': (None, [POINTER(skep_moe_grads)]),
    'skep_moe_new': (c_int, [c_void_p, POINTER(skep_moe_options), POINTER(c_void_p), POINTER(skep_error)]),
    'skep_moe_options_init': (None, [POINTER(skep_moe_options)]),
    'skep_moe_pass_answers': (c_size_t, [c_void_p, c_size_t]),
    'skep_moe_pass_choice': (c_bool, [c_void_p, c_size_t, c_size_t, POINTER(skep_moe_choice)]),
    'skep_moe_pass_failure': (c_bool, [c_void_p, POINTER(skep_error)]),
    'skep_moe_pass_free': (None, [c_void_p]),
    'skep_moe_weight': (POINTER(DLTensor), [c_void_p]),
    'skep_node_add_expert': (c_int, [c_void_p, c_char_p, POINTER(skep_expert_options), POINTER(skep_error)]),
    'skep_node_add_pattern': (c_int, [c_void_p, c_char_p, c_size_t, POINTER(skep_expert_options), POINTER(skep_error)]),
    'skep_node_dht_port': (c_uint16, [c_void_p]),
    'skep_node_endpoint': (c_char_p, [c_void_p]),
    'skep_node_expert_count': (c_size_t, [c_void_p]),
    'skep_node_expert_stats': (c_bool, [c_void_p, c_size_t, POINTER(skep_expert_stats)]),
    'skep_node_expert_uid': (c_char_p, [c_void_p, c_size_t]),
    'skep_node_free': (None, [c_void_p]),
    'skep_node_initial_peer': (c_char_p, [c_void_p]),
    'skep_node_load_expert': (c_int, [c_void_p, c_char_p, POINTER(skep_expert_options), POINTER(skep_error)]),
    'skep_node_load_experts': (c_int, [c_void_p, c_char_p, POINTER(skep_expert_options), POINTER(c_size_t), POINTER(skep_error)]),
    'skep_node_new': (c_int, [POINTER(skep_node_options), POINTER(c_void_p), POINTER(skep_error)]),
    'skep_node_options_init': (None, [POINTER(skep_node_options)]),
    'skep_node_peer_id': (c_char_p, [c_void_p]),
    'skep_node_port': (c_uint16, [c_void_p]),
    'skep_node_reachability': (c_int, [c_void_p, POINTER(c_char)]),
    'skep_node_remove_expert': (c_int, [c_void_p, c_char_p, c_uint32, POINTER(skep_error)]),
    'skep_node_request_stop': (None, [c_void_p]),
    'skep_node_run': (c_int, [c_void_p, POINTER(skep_error)]),
    'skep_node_start': (c_int, [c_void_p, POINTER(skep_error)]),
    'skep_node_stats': (None, [c_void_p, POINTER(skep_node_stats)]),
    'skep_node_stop': (None, [c_void_p]),
    'skep_node_tracker_each_key': (c_int, [c_void_p, CFUNCTYPE(c_bool, c_void_p, POINTER(skep_tracker_key_stats)), c_void_p, POINTER(skep_error)]),
    'skep_node_tracker_endpoint': (c_char_p, [c_void_p]),
    'skep_node_tracker_stop_key': (c_char_p, [c_void_p]),
    'skep_node_wait': (c_bool, [c_void_p, c_uint32]),
    'skep_node_wait_ready': (c_int, [c_void_p, c_uint32, POINTER(skep_error)]),
    'skep_npy_load': (c_int, [c_char_p, POINTER(POINTER(DLManagedTensor)), POINTER(skep_error)]),
    'skep_npy_parse': (c_int, [c_void_p, c_size_t, POINTER(POINTER(DLManagedTensor)), POINTER(skep_error)]),
    'skep_npy_save': (c_int, [c_char_p, POINTER(DLTensor), POINTER(skep_error)]),
    'skep_peers_free': (None, [POINTER(skep_peer)]),
    'skep_plugin_load': (c_int, [c_char_p, POINTER(skep_error)]),
    'skep_plugin_register': (c_int, [POINTER(skep_plugin), POINTER(skep_error)]),
    'skep_reachability_name': (c_char_p, [c_int]),
    'skep_remote_expert_backward': (c_int, [c_void_p, POINTER(POINTER(DLTensor)), c_size_t, POINTER(POINTER(DLTensor)), c_size_t, POINTER(skep_call_options), POINTER(POINTER(DLManagedTensor)), c_size_t, POINTER(c_size_t), POINTER(skep_error)]),
    'skep_remote_expert_backward_start': (c_int, [c_void_p, POINTER(POINTER(DLTensor)), c_size_t, POINTER(POINTER(DLTensor)), c_size_t, POINTER(skep_call_options), CFUNCTYPE(None, c_void_p, c_void_p), c_void_p, POINTER(c_void_p), POINTER(skep_error)]),
    'skep_remote_expert_forward': (c_int, [c_void_p, POINTER(POINTER(DLTensor)), c_size_t, POINTER(skep_call_options), POINTER(POINTER(DLManagedTensor)), c_size_t, POINTER(c_size_t), POINTER(skep_error)]),
    'skep_remote_expert_forward_start': (c_int, [c_void_p, POINTER(POINTER(DLTensor)), c_size_t, POINTER(skep_call_options), CFUNCTYPE(None, c_void_p, c_void_p), c_void_p, POINTER(c_void_p), POINTER(skep_error)]),
    'skep_remote_expert_free': (None, [c_void_p]),
    'skep_remote_expert_info': (c_int, [c_void_p, c_uint32, POINTER(skep_expert_info), POINTER(skep_error)]),
    'skep_remote_expert_providers': (c_size_t, [c_void_p, POINTER(skep_provider), c_size_t]),
    'skep_remote_expert_uid': (c_char_p, [c_void_p]),
    'skep_safetensors_close': (None, [c_void_p]),
    'skep_safetensors_count': (c_size_t, [c_void_p]),
    'skep_safetensors_find': (POINTER(DLTensor), [c_void_p, c_char_p]),
    'skep_safetensors_metadata': (c_char_p, [c_void_p, c_char_p]),
    'skep_safetensors_name': (c_char_p, [c_void_p, c_size_t]),
    'skep_safetensors_open': (c_int, [c_char_p, POINTER(c_void_p), POINTER(skep_error)]),
    'skep_safetensors_parse': (c_int, [c_void_p, c_size_t, POINTER(c_void_p), POINTER(skep_error)]),
    'skep_safetensors_save': (c_int, [c_char_p, POINTER(skep_named_tensor), c_size_t, POINTER(c_char_p), POINTER(skep_error)]),
    'skep_safetensors_tensor': (POINTER(DLTensor), [c_void_p, c_size_t]),
    'skep_status_name': (c_char_p, [c_int]),
    'skep_status_text': (c_char_p, [c_int]),
    'skep_switch_moe_backward': (c_int, [c_void_p, POINTER(DLTensor), c_double, POINTER(skep_moe_grads), POINTER(skep_error)]),
    'skep_switch_moe_bias': (POINTER(DLTensor), [c_void_p]),
    'skep_switch_moe_forward': (c_int, [c_void_p, POINTER(DLTensor), POINTER(POINTER(DLTensor)), c_bool, POINTER(c_void_p), POINTER(POINTER(DLManagedTensor)), POINTER(c_double), POINTER(skep_error)]),
    'skep_switch_moe_free': (None, [c_void_p]),
    'skep_switch_moe_new': (c_int, [c_void_p, POINTER(skep_switch_moe_options), POINTER(c_void_p), POINTER(skep_error)]),
    'skep_switch_moe_options_init': (None, [POINTER(skep_switch_moe_options)]),
    'skep_switch_moe_pass_choices': (c_void_p, [c_void_p]),
    'skep_switch_moe_pass_free': (None, [c_void_p]),
    'skep_switch_moe_utilization': (None, [c_void_p, c_int, POINTER(c_double)]),
    'skep_switch_moe_weight': (POINTER(DLTensor), [c_void_p]),
    'skep_tensor_bytes': (c_int, [POINTER(DLTensor), POINTER(c_size_t), POINTER(skep_error)]),
    'skep_tensor_data': (c_void_p, [POINTER(DLTensor)]),
    'skep_tensor_free': (None, [POINTER(DLManagedTensor)]),
    'skep_tensor_new': (c_int, [DLDataType, c_int, POINTER(c_int64), POINTER(POINTER(DLManagedTensor)), POINTER(skep_error)]),
    'skep_tracked_resources_free': (None, [POINTER(skep_tracked_resource)]),
    'skep_tracker_each_key': (c_int, [c_void_p, CFUNCTYPE(c_bool, c_void_p, POINTER(skep_tracker_key_stats)), c_void_p, POINTER(skep_error)]),
    'skep_tracker_endpoint': (c_char_p, [c_void_p]),
    'skep_tracker_free': (None, [c_void_p]),
    'skep_tracker_options_init': (None, [POINTER(skep_tracker_options)]),
    'skep_tracker_port': (c_uint16, [c_void_p]),
    'skep_tracker_request_stop': (None, [c_void_p]),
    'skep_tracker_start': (c_int, [POINTER(skep_tracker_options), POINTER(c_void_p), POINTER(skep_error)]),
    'skep_tracker_stats': (None, [c_void_p, POINTER(skep_tracker_stats)]),
    'skep_tracker_stop_key': (c_char_p, [c_void_p]),
    'skep_tracker_summary': (c_int, [c_void_p, POINTER(c_char_p), POINTER(skep_error)]),
    'skep_tracker_terminate': (None, [c_void_p, c_uint32]),
    'skep_tracker_text_free': (None, [c_char_p]),
    'skep_tracker_wait': (c_bool, [c_void_p, c_uint32]),
    'skep_version': (c_char_p, []),
    'skep_watch_count': (c_size_t, [c_void_p]),
    'skep_watch_each': (None, [c_void_p, CFUNCTYPE(None, c_void_p, c_char_p, POINTER(skep_provider), c_size_t), c_void_p]),
    'skep_watch_free': (None, [c_void_p]),
    'skep_watch_in_step': (c_bool, [c_void_p]),
    'skep_watch_new': (c_int, [c_void_p, c_char_p, CFUNCTYPE(None, c_void_p, c_int, c_char_p, POINTER(skep_provider), c_size_t), c_void_p, POINTER(c_void_p), POINTER(skep_error)]),
    'skep_watch_wait_ready': (c_int, [c_void_p, c_uint32, POINTER(skep_error)]),
}
