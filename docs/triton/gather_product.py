import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem


def microseconds(work):
    work()
    torch.zeros(1 << 33, dtype=torch.uint8, device="cuda")  # the hosts get ahead
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    handle.barrier()
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3


def apart():
    dist.all_gather_single(whole, shard)
    return whole @ weight


def fused():
    group = dist.group.WORLD.group_name
    return torch.ops.symm_mem.fused_all_gather_matmul(shard, [weight], 0, group)


dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
handle = symm_mem.rendezvous(symm_mem.empty(1, device="cuda"), dist.group.WORLD)
if rank == 0:
    print("    rows     apart     fused   (us)")
for rows in (1024, 8192):
    shard = torch.ones(rows // world, 8192, dtype=torch.bfloat16, device="cuda")
    weight = torch.ones(8192, 4096, dtype=torch.bfloat16, device="cuda")
    whole = torch.empty(rows, 8192, dtype=torch.bfloat16, device="cuda")
    times = [microseconds(apart), microseconds(fused)]
    if rank == 0:
        print(f"{rows:8}  " + "  ".join(f"{time:8.1f}" for time in times))
dist.destroy_process_group()
