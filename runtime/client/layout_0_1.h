/* How the structs of the public headers lay in memory in version 0.1, on 64-bit Linux. Programs
 * that were compiled then are still in use, so nothing here ever changes. A later version appends
 * fields to a struct; it adds no line here. Names are those of today, because version 1.0 renamed
 * some fields, and gave gpushm_delete a struct of its own in place of gpushm_wait_options.
 *
 *   STRUCT(name, bytes)
 *   FIELD(struct, name, offset, bytes) */
#ifndef GPUSHM_LAYOUT_0_1_H_
#define GPUSHM_LAYOUT_0_1_H_

/* clang-format off */
#define GPUSHM_LAYOUT_0_1(STRUCT, FIELD) \
  STRUCT(gpushm_error, 32) \
    FIELD(gpushm_error, status, 0, 4) \
    FIELD(gpushm_error, text, 8, 8) \
    FIELD(gpushm_error, what, 16, 8) \
    FIELD(gpushm_error, remedy, 24, 8) \
  STRUCT(gpushm_open_options, 40) \
    FIELD(gpushm_open_options, struct_size, 0, 8) \
    FIELD(gpushm_open_options, folder, 8, 8) \
    FIELD(gpushm_open_options, pod_uid, 16, 8) \
    FIELD(gpushm_open_options, driver, 24, 8) \
    FIELD(gpushm_open_options, timeout_ms, 32, 8) \
  STRUCT(gpushm_info, 200) \
    FIELD(gpushm_info, struct_size, 0, 8) \
    FIELD(gpushm_info, name, 8, 64) \
    FIELD(gpushm_info, generation, 72, 8) \
    FIELD(gpushm_info, size_bytes, 80, 8) \
    FIELD(gpushm_info, mapped_bytes, 88, 8) \
    FIELD(gpushm_info, loaded_bytes, 96, 8) \
    FIELD(gpushm_info, created_unix_ns, 104, 8) \
    FIELD(gpushm_info, gpu_uuid, 112, 16) \
    FIELD(gpushm_info, transport, 128, 4) \
    FIELD(gpushm_info, state, 132, 4) \
    FIELD(gpushm_info, creator, 136, 64) \
  STRUCT(gpushm_wait_options, 16) \
    FIELD(gpushm_wait_options, struct_size, 0, 8) \
    FIELD(gpushm_wait_options, timeout_ms, 8, 8) \
  STRUCT(gpushm_delete_options, 16) \
    FIELD(gpushm_delete_options, struct_size, 0, 8) \
    FIELD(gpushm_delete_options, timeout_ms, 8, 8) \
  STRUCT(gpushm_holder, 184) \
    FIELD(gpushm_holder, struct_size, 0, 8) \
    FIELD(gpushm_holder, buffer, 8, 64) \
    FIELD(gpushm_holder, container, 72, 64) \
    FIELD(gpushm_holder, generation, 136, 8) \
    FIELD(gpushm_holder, client_id, 144, 8) \
    FIELD(gpushm_holder, lease_id, 152, 8) \
    FIELD(gpushm_holder, access, 160, 4) \
    FIELD(gpushm_holder, reserved, 164, 4) \
    FIELD(gpushm_holder, since_unix_ns, 168, 8) \
    FIELD(gpushm_holder, peer_method, 176, 4) \
    FIELD(gpushm_holder, reserved1, 180, 4) \
  STRUCT(gpushm_broker_info, 128) \
    FIELD(gpushm_broker_info, struct_size, 0, 8) \
    FIELD(gpushm_broker_info, container, 8, 64) \
    FIELD(gpushm_broker_info, gpu_uuid, 72, 16) \
    FIELD(gpushm_broker_info, pool_bytes, 88, 8) \
    FIELD(gpushm_broker_info, used_bytes, 96, 8) \
    FIELD(gpushm_broker_info, broker_epoch, 104, 8) \
    FIELD(gpushm_broker_info, protocol, 112, 4) \
    FIELD(gpushm_broker_info, clients, 116, 4) \
    FIELD(gpushm_broker_info, leases, 120, 4) \
    FIELD(gpushm_broker_info, simulated, 124, 4) \
  STRUCT(gpushm_attach_options, 48) \
    FIELD(gpushm_attach_options, struct_size, 0, 8) \
    FIELD(gpushm_attach_options, access, 8, 4) \
    FIELD(gpushm_attach_options, reserved, 12, 4) \
    FIELD(gpushm_attach_options, generation, 16, 8) \
    FIELD(gpushm_attach_options, timeout_ms, 24, 8) \
    FIELD(gpushm_attach_options, peer_devices, 32, 8) \
    FIELD(gpushm_attach_options, stage, 40, 4) \
    FIELD(gpushm_attach_options, reserved1, 44, 4) \
  STRUCT(gpushm_attachment_info, 152) \
    FIELD(gpushm_attachment_info, struct_size, 0, 8) \
    FIELD(gpushm_attachment_info, name, 8, 64) \
    FIELD(gpushm_attachment_info, address, 72, 8) \
    FIELD(gpushm_attachment_info, size_bytes, 80, 8) \
    FIELD(gpushm_attachment_info, mapped_bytes, 88, 8) \
    FIELD(gpushm_attachment_info, generation, 96, 8) \
    FIELD(gpushm_attachment_info, lease_id, 104, 8) \
    FIELD(gpushm_attachment_info, access, 112, 4) \
    FIELD(gpushm_attachment_info, transport, 116, 4) \
    FIELD(gpushm_attachment_info, status, 120, 4) \
    FIELD(gpushm_attachment_info, state, 124, 4) \
    FIELD(gpushm_attachment_info, device, 128, 4) \
    FIELD(gpushm_attachment_info, count, 132, 4) \
    FIELD(gpushm_attachment_info, peer_devices, 136, 8) \
    FIELD(gpushm_attachment_info, peer_method, 144, 4) \
    FIELD(gpushm_attachment_info, reserved, 148, 4) \
  STRUCT(gpushm_detach_options, 32) \
    FIELD(gpushm_detach_options, struct_size, 0, 8) \
    FIELD(gpushm_detach_options, streams, 8, 8) \
    FIELD(gpushm_detach_options, stream_count, 16, 8) \
    FIELD(gpushm_detach_options, defer, 24, 4) \
    FIELD(gpushm_detach_options, reserved, 28, 4) \
  STRUCT(gpushm_create_options, 32) \
    FIELD(gpushm_create_options, struct_size, 0, 8) \
    FIELD(gpushm_create_options, writers, 8, 4) \
    FIELD(gpushm_create_options, one_writer, 12, 4) \
    FIELD(gpushm_create_options, on_writer_exit, 16, 4) \
    FIELD(gpushm_create_options, unpublished, 20, 4) \
    FIELD(gpushm_create_options, timeout_ms, 24, 8) \
  STRUCT(gpushm_offer_options, 32) \
    FIELD(gpushm_offer_options, struct_size, 0, 8) \
    FIELD(gpushm_offer_options, writers, 8, 4) \
    FIELD(gpushm_offer_options, one_writer, 12, 4) \
    FIELD(gpushm_offer_options, on_writer_exit, 16, 4) \
    FIELD(gpushm_offer_options, allow_copy, 20, 4) \
    FIELD(gpushm_offer_options, timeout_ms, 24, 8) \
  STRUCT(gpushm_offer_result, 32) \
    FIELD(gpushm_offer_result, struct_size, 0, 8) \
    FIELD(gpushm_offer_result, transport, 8, 4) \
    FIELD(gpushm_offer_result, copied, 12, 4) \
    FIELD(gpushm_offer_result, copied_bytes, 16, 8) \
    FIELD(gpushm_offer_result, copy_ns, 24, 8) \
  STRUCT(gpushm_transfer_options, 64) \
    FIELD(gpushm_transfer_options, struct_size, 0, 8) \
    FIELD(gpushm_transfer_options, method, 8, 4) \
    FIELD(gpushm_transfer_options, reserved, 12, 4) \
    FIELD(gpushm_transfer_options, chunk_bytes, 16, 8) \
    FIELD(gpushm_transfer_options, progress, 24, 8) \
    FIELD(gpushm_transfer_options, user, 32, 8) \
    FIELD(gpushm_transfer_options, timeout_ms, 40, 8) \
    FIELD(gpushm_transfer_options, file_method, 48, 4) \
    FIELD(gpushm_transfer_options, chunks, 52, 4) \
    FIELD(gpushm_transfer_options, threads, 56, 4) \
    FIELD(gpushm_transfer_options, descriptor, 60, 4) \
  STRUCT(gpushm_transfer_result, 56) \
    FIELD(gpushm_transfer_result, struct_size, 0, 8) \
    FIELD(gpushm_transfer_result, method, 8, 4) \
    FIELD(gpushm_transfer_result, reserved, 12, 4) \
    FIELD(gpushm_transfer_result, bytes, 16, 8) \
    FIELD(gpushm_transfer_result, elapsed_ns, 24, 8) \
    FIELD(gpushm_transfer_result, file_method, 32, 4) \
    FIELD(gpushm_transfer_result, file_reason, 36, 4) \
    FIELD(gpushm_transfer_result, moving_ns, 40, 8) \
    FIELD(gpushm_transfer_result, link_bytes_per_second, 48, 8) \
  STRUCT(gpushm_signal_options, 32) \
    FIELD(gpushm_signal_options, struct_size, 0, 8) \
    FIELD(gpushm_signal_options, role, 8, 4) \
    FIELD(gpushm_signal_options, writers, 12, 4) \
    FIELD(gpushm_signal_options, timeout_ms, 16, 8) \
    FIELD(gpushm_signal_options, memory, 24, 4) \
    FIELD(gpushm_signal_options, reserved, 28, 4) \
  STRUCT(gpushm_signal_info, 112) \
    FIELD(gpushm_signal_info, struct_size, 0, 8) \
    FIELD(gpushm_signal_info, name, 8, 64) \
    FIELD(gpushm_signal_info, generation, 72, 8) \
    FIELD(gpushm_signal_info, value, 80, 8) \
    FIELD(gpushm_signal_info, state, 88, 4) \
    FIELD(gpushm_signal_info, role, 92, 4) \
    FIELD(gpushm_signal_info, recorded, 96, 8) \
    FIELD(gpushm_signal_info, memory, 104, 4) \
    FIELD(gpushm_signal_info, reserved, 108, 4) \
  STRUCT(gpushm_barrier_options, 24) \
    FIELD(gpushm_barrier_options, struct_size, 0, 8) \
    FIELD(gpushm_barrier_options, participants, 8, 4) \
    FIELD(gpushm_barrier_options, reserved, 12, 4) \
    FIELD(gpushm_barrier_options, timeout_ms, 16, 8) \
  STRUCT(gpushm_barrier_info, 104) \
    FIELD(gpushm_barrier_info, struct_size, 0, 8) \
    FIELD(gpushm_barrier_info, name, 8, 64) \
    FIELD(gpushm_barrier_info, generation, 72, 8) \
    FIELD(gpushm_barrier_info, point, 80, 8) \
    FIELD(gpushm_barrier_info, participants, 88, 4) \
    FIELD(gpushm_barrier_info, joined, 92, 4) \
    FIELD(gpushm_barrier_info, cell, 96, 4) \
    FIELD(gpushm_barrier_info, reserved, 100, 4) \
  STRUCT(gpushm_ring_options, 48) \
    FIELD(gpushm_ring_options, struct_size, 0, 8) \
    FIELD(gpushm_ring_options, role, 8, 4) \
    FIELD(gpushm_ring_options, policy, 12, 4) \
    FIELD(gpushm_ring_options, frames, 16, 4) \
    FIELD(gpushm_ring_options, readers, 20, 4) \
    FIELD(gpushm_ring_options, frame_bytes, 24, 8) \
    FIELD(gpushm_ring_options, need_readers, 32, 4) \
    FIELD(gpushm_ring_options, from_oldest, 36, 4) \
    FIELD(gpushm_ring_options, timeout_ms, 40, 8) \
  STRUCT(gpushm_frame, 136) \
    FIELD(gpushm_frame, struct_size, 0, 8) \
    FIELD(gpushm_frame, address, 8, 8) \
    FIELD(gpushm_frame, capacity_bytes, 16, 8) \
    FIELD(gpushm_frame, bytes, 24, 8) \
    FIELD(gpushm_frame, number, 32, 8) \
    FIELD(gpushm_frame, time_ns, 40, 8) \
    FIELD(gpushm_frame, lost, 48, 8) \
    FIELD(gpushm_frame, delivery, 56, 4) \
    FIELD(gpushm_frame, ready, 60, 4) \
    FIELD(gpushm_frame, metadata, 64, 64) \
    FIELD(gpushm_frame, slot, 128, 4) \
    FIELD(gpushm_frame, hold, 132, 4) \
  STRUCT(gpushm_ring_info, 144) \
    FIELD(gpushm_ring_info, struct_size, 0, 8) \
    FIELD(gpushm_ring_info, name, 8, 64) \
    FIELD(gpushm_ring_info, generation, 72, 8) \
    FIELD(gpushm_ring_info, role, 80, 4) \
    FIELD(gpushm_ring_info, policy, 84, 4) \
    FIELD(gpushm_ring_info, frames, 88, 4) \
    FIELD(gpushm_ring_info, readers, 92, 4) \
    FIELD(gpushm_ring_info, frame_bytes, 96, 8) \
    FIELD(gpushm_ring_info, newest, 104, 8) \
    FIELD(gpushm_ring_info, dropped, 112, 8) \
    FIELD(gpushm_ring_info, taken, 120, 8) \
    FIELD(gpushm_ring_info, lost, 128, 8) \
    FIELD(gpushm_ring_info, writer_state, 136, 4) \
    FIELD(gpushm_ring_info, reserved, 140, 4) \
  STRUCT(gpushm_sync_info, 112) \
    FIELD(gpushm_sync_info, struct_size, 0, 8) \
    FIELD(gpushm_sync_info, name, 8, 64) \
    FIELD(gpushm_sync_info, generation, 72, 8) \
    FIELD(gpushm_sync_info, value, 80, 8) \
    FIELD(gpushm_sync_info, writer_lease, 88, 8) \
    FIELD(gpushm_sync_info, kind, 96, 4) \
    FIELD(gpushm_sync_info, state, 100, 4) \
    FIELD(gpushm_sync_info, joined, 104, 4) \
    FIELD(gpushm_sync_info, places, 108, 4)
/* clang-format on */

#endif /* GPUSHM_LAYOUT_0_1_H_ */
