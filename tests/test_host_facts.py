"""Host facts: each parser on fixture files and fake trees of /proc and /sys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.filesystems import describe
from bench.host import accelerators, blocks, cpu, machine, meminfo, mounts
from bench.host.facts import host_facts, mount_facts
from bench.host.files import chosen, cpu_list, number
from tests.tiny_host import fixture, tree

MOUNTS = mounts.parse(fixture("mountinfo.txt"))
QUEUE = {
    "rotational": "0\n",
    "scheduler": "[none] mq-deadline kyber\n",
    "read_ahead_kb": "128\n",
    "logical_block_size": "512\n",
    "physical_block_size": "4096\n",
    "max_sectors_kb": "1280\n",
    "nr_requests": "1023\n",
}


def _mount(path: str) -> mounts.Mount:
    found = mounts.mount_for(path, MOUNTS)
    assert found is not None
    return found


# --- processors


def test_amd_two_sockets() -> None:
    processors = cpu.parse_cpuinfo(fixture("cpuinfo_amd.txt"))
    assert len(processors) == 3
    assert cpu.model(processors) == "AMD EPYC 9554 64-Core Processor"
    assert "avx512_vnni" in (cpu.flags(processors) or ())


def test_topology_from_cpuinfo_alone(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/cpuinfo": fixture("cpuinfo_amd.txt")})
    facts = cpu.cpu_facts(root)
    assert (facts["sockets"], facts["cores"], facts["threads"]) == (2, 2, 3)
    assert facts["flags"] == [
        *("avx", "avx2", "avx512_bf16", "avx512_vnni", "avx512bw", "avx512f", "f16c", "fma")
    ]
    assert facts["numa_nodes"] == []


def test_kunpeng_has_no_model_name(tmp_path: Path) -> None:
    """arm64: implementer and part only; a package number of -1 says nothing."""
    base = "sys/devices/system/cpu"
    files = {"proc/cpuinfo": fixture("cpuinfo_kunpeng.txt"), f"{base}/online": "0-1\n"}
    for index in (0, 1):
        files[f"{base}/cpu{index}/topology/physical_package_id"] = "-1\n"
        files[f"{base}/cpu{index}/topology/core_cpus_list"] = f"{index}\n"
    facts = cpu.cpu_facts(tree(tmp_path, files))
    assert facts["model"] == "HiSilicon TaiShan-v110 (Kunpeng 920)"
    assert (facts["sockets"], facts["cores"], facts["threads"]) == (None, 2, 2)
    assert facts["flags"] == ["asimd", "asimddp", "asimdhp", "fphp"]


def test_an_arm_part_without_a_name_is_shown_by_number() -> None:
    text = fixture("cpuinfo_kunpeng.txt").replace("0xd01", "0xfff")
    assert cpu.model(cpu.parse_cpuinfo(text)) == "implementer 0x48, part 0xfff"


def test_sockets_and_hyper_threads_from_topology(tmp_path: Path) -> None:
    base = "sys/devices/system/cpu"
    files = {f"{base}/online": "0-5,7\n"}
    layout = {0: (0, "0,3"), 1: (0, "1,4"), 2: (1, "2,5"), 3: (0, "0,3"), 4: (0, "1,4")}
    layout |= {5: (1, "2,5"), 7: (1, "7")}
    for index, (package, siblings) in layout.items():
        files[f"{base}/cpu{index}/topology/physical_package_id"] = f"{package}\n"
        files[f"{base}/cpu{index}/topology/thread_siblings_list"] = f"{siblings}\n"
    facts = cpu.cpu_facts(tree(tmp_path, files))
    assert (facts["sockets"], facts["cores"], facts["threads"]) == (2, 4, 7)


def test_numa_nodes(tmp_path: Path) -> None:
    base = "sys/devices/system/node"
    root = tree(
        tmp_path,
        {
            f"{base}/node0/cpulist": "0-3,8-11\n",
            f"{base}/node0/meminfo": "Node 0 MemTotal:  1024 kB\nNode 0 MemFree:   512 kB\n",
            f"{base}/node10/cpulist": "\n",
            f"{base}/node10/meminfo": "Node 10 MemTotal:  2048 kB\n",
            f"{base}/node2/cpulist": "4-7\n",
            f"{base}/online": "0,2,10\n",
        },
    )
    nodes = cpu.numa_nodes(root)
    assert [node["node"] for node in nodes] == [0, 2, 10]
    assert nodes[0] == {
        "node": 0,
        "cpus": "0-3,8-11",
        "memory_bytes": 1024 * 1024,
        "free_bytes": 512 * 1024,
    }
    assert nodes[1]["memory_bytes"] is None
    assert nodes[2]["cpus"] == ""


def test_nothing_at_all_gives_nulls(tmp_path: Path) -> None:
    facts = cpu.cpu_facts(tmp_path)
    assert {facts[key] for key in ("model", "sockets", "cores", "threads", "flags")} == {None}


@given(st.sets(st.integers(0, 300)))
def test_cpu_lists_round_trip(cpus: set[int]) -> None:
    assert set(cpu_list(",".join(str(c) for c in sorted(cpus)))) == cpus


def test_cpu_list_ranges() -> None:
    assert cpu_list("0-3,8,10-11") == [0, 1, 2, 3, 8, 10, 11]
    assert cpu_list("") == []


# --- memory


def test_meminfo_units() -> None:
    values = meminfo.parse(fixture("meminfo.txt"))
    assert values["MemTotal"] == 1056434212 * 1024
    assert values["HugePages_Total"] == 16
    assert meminfo.available(fixture("meminfo.txt")) == 901220400 * 1024


def test_memory_facts(tmp_path: Path) -> None:
    huge = "sys/kernel/mm/hugepages"
    root = tree(
        tmp_path,
        {
            "proc/meminfo": fixture("meminfo.txt"),
            "proc/sys/vm/overcommit_memory": "1\n",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
            "sys/kernel/mm/transparent_hugepage/defrag": "always defer [defer+madvise] never\n",
            f"{huge}/hugepages-1048576kB/nr_hugepages": "2\n",
            f"{huge}/hugepages-2048kB/nr_hugepages": "16\n",
            f"{huge}/hugepages-2048kB/free_hugepages": "4\n",
        },
    )
    facts = meminfo.memory_facts(root)
    assert facts["transparent_huge_pages"] == {
        "enabled": "madvise",
        "defrag": "defer+madvise",
        "size_bytes": None,
    }
    assert facts["huge_pages"] == [
        {"page_bytes": 2 * 2**20, "total": 16, "free": 4},
        {"page_bytes": 2**30, "total": 2, "free": None},
    ]
    assert facts["swap_total_bytes"] == 8388604 * 1024
    assert facts["overcommit_memory"] == 1
    assert facts["overcommit_ratio"] is None


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("always [madvise] never", "madvise"),
        ("[none]", "none"),
        ("none", "none"),
        ("a b", None),
        ("", None),
        (None, None),
    ],
)
def test_the_chosen_word(content: str | None, expected: str | None) -> None:
    assert chosen(content) == expected


def test_numbers_that_are_none(tmp_path: Path) -> None:
    tree(tmp_path, {"a": "max\n", "b": "-1\n", "c": "", "d": "12 34"})
    assert [number(tmp_path / name) for name in "abcde"] == [None, -1, None, None, None]


# --- mounts


@pytest.mark.parametrize(
    ("path", "fs_type", "family"),
    [
        ("/mnt/nfs/llama", "nfs4", "network"),
        ("/mnt/nfs3", "nfs", "network"),
        ("/mnt/lustre/a/b", "lustre", "network"),
        ("/mnt/cephfuse/x", "fuse.ceph", "fuse"),
        ("/mnt/ceph/x", "ceph", "network"),
        ("/mnt/virtiofs/x", "virtiofs", "network"),
        ("/mnt/merged/x", "overlay", "overlay"),
        ("/dev/shm/x", "tmpfs", "memory"),
        ("/mnt/nvme/x", "xfs", "local"),
        ("/mnt/nvme2/x", "zfs", "local"),
        ("/mnt/nvme22/x", "ext4", "local"),
        ("/mnt/nvm", "ext4", "local"),
        ("/srv/bind/shard", "xfs", "local"),
        ("/mnt/with space\\and\ttab/x", "ext4", "local"),
        ("/", "ext4", "local"),
    ],
)
def test_c93_file_system_of_a_path(path: str, fs_type: str, family: str) -> None:
    mount = _mount(path)
    assert mount.fs_type == fs_type
    assert describe(mount.fs_type).family == family


def test_of_stacked_mounts_the_last_wins() -> None:
    assert _mount("/mnt/stacked/x").source == "/dev/sdb1"


def test_fields_of_a_line() -> None:
    mount = _mount("/mnt/btrfs/model")
    assert (mount.root, mount.source, mount.device) == ("/@models", "/dev/sdb2", "0:52")
    assert "subvol=/@models" in mount.super_options
    assert _mount("/srv/bind").root == "/datasets/llama"
    assert _mount("/mnt/stacked").parent == 52


def test_no_mounts() -> None:
    assert mounts.mount_for("/x", []) is None


@pytest.mark.parametrize("line", ["", "1 2 3", "a b 0:1 / / rw - ext4 x rw", "1 2 0:1 / / rw ext4"])
def test_lines_that_are_none(line: str) -> None:
    if not line:
        assert mounts.parse(line) == []
        return
    with pytest.raises(ValueError, match="mountinfo"):
        mounts.parse(line)


def test_an_empty_source_is_legal() -> None:
    (mount,) = mounts.parse("1 2 0:1 / /x rw - tmpfs  rw")
    assert (mount.source, mount.super_options) == ("", "rw")


@given(
    st.text(
        st.characters(exclude_characters="\0/", exclude_categories=("Cs", "Cc")), min_size=1
    ).filter(lambda name: name not in (".", ".."))
)
def test_any_mount_point_survives_the_kernels_escapes(name: str) -> None:
    escaped = name.replace("\\", "\\134").replace(" ", "\\040").replace("#", "\\043")
    if len(escaped.splitlines()) != 1:
        return
    (mount,) = mounts.parse(f"1 2 8:1 / /mnt/{escaped} rw - ext4 /dev/sda1 rw")
    assert mounts.mount_for(f"/mnt/{name}/x", [mount]) is mount


def test_this_system_agrees_with_the_kernel(tmp_path: Path) -> None:
    mount = mounts.mount_of(tmp_path)
    assert mount is not None
    if not mount.device.startswith("0:"):
        device = tmp_path.stat().st_dev
        assert mount.device == f"{os.major(device)}:{os.minor(device)}"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_mount_that_covers_another_further_down(tmp_path: Path) -> None:
    """By mount points alone the inner one would be named, which can't be seen any more."""
    outer = tmp_path / "outer"
    inner = outer / "inner"
    inner.mkdir(parents=True)
    done = []
    try:
        for source, target in (("below", inner), ("cover", outer)):
            mounted = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=64k", source, str(target)],
                capture_output=True,
                text=True,
                check=False,
            )
            if mounted.returncode:
                pytest.skip(f"no mount here: {mounted.stderr.strip()}")
            done.append(target)
        (outer / "inner").mkdir()
        found = mounts.mount_of(outer / "inner")
        assert found is not None
        assert found.source == "cover"
    finally:
        for target in reversed(done):
            subprocess.run(["umount", str(target)], check=True)


# --- block devices


def _sys(root: Path) -> Path:
    """A partition on NVMe; LVM on two disks; a RAID; a btrfs disk; a loop device."""
    nvme = "sys/devices/pci0000:00/nvme/nvme0/nvme0n1"
    scsi = "sys/devices/pci0000:00/scsi/block"
    files = {
        f"{nvme}/device/model": "SAMSUNG MZQL23T8HCLS-00A07    \n",
        f"{nvme}/device/device/numa_node": "1\n",
        f"{nvme}/size": "7501476528\n",
        f"{nvme}/nvme0n1p1/partition": "1\n",
        f"{nvme}/nvme0n1p1/size": "2048\n",
        **{f"{nvme}/queue/{name}": value for name, value in QUEUE.items()},
        f"{scsi}/sda/queue/rotational": "1\n",
        f"{scsi}/sda/queue/scheduler": "none [mq-deadline]\n",
        f"{scsi}/sda/device/model": "ST16000NM001G\n",
        f"{scsi}/sdb/queue/rotational": "0\n",
        f"{scsi}/sdb/sdb2/partition": "2\n",
        f"{scsi}/sdb/sdb2/size": "4096\n",
        "sys/devices/virtual/block/dm-0/dm/name": "vg0-root\n",
        "sys/devices/virtual/block/dm-0/size": "8\n",
        "sys/devices/virtual/block/dm-0/queue/read_ahead_kb": "4096\n",
        "sys/devices/virtual/block/md127/md/level": "raid0\n",
        "sys/devices/virtual/block/md127/size": "16\n",
        "sys/devices/virtual/block/loop3/loop/backing_file": "/images/models.squashfs\n",
        "sys/devices/virtual/block/loop3/size": "24\n",
        "dev/.keep": "",
    }
    tree(root, files)
    virtual = "sys/devices/virtual/block"
    links = {
        "259:2": f"{nvme}/nvme0n1p1",
        "253:0": f"{virtual}/dm-0",
        "9:127": f"{virtual}/md127",
        "7:3": f"{virtual}/loop3",
    }
    for name, target in links.items():
        _link(root, f"sys/dev/block/{name}", target)
    names = {
        "nvme0n1": nvme,
        "nvme0n1p1": f"{nvme}/nvme0n1p1",
        "sda": f"{scsi}/sda",
        "sdb2": f"{scsi}/sdb/sdb2",
        "dm-0": f"{virtual}/dm-0",
    }
    for name, target in names.items():
        _link(root, f"sys/class/block/{name}", target)
    _link(root, f"{virtual}/dm-0/slaves/nvme0n1p1", f"{nvme}/nvme0n1p1")
    _link(root, f"{virtual}/dm-0/slaves/sda", f"{scsi}/sda")
    _link(root, f"{virtual}/md127/slaves/sda", f"{scsi}/sda")
    _link(root, f"{virtual}/md127/slaves/dm-0", f"{virtual}/dm-0")
    return root


def _link(root: Path, name: str, target: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(root / target, path.parent))


def test_a_partition_has_the_queue_of_its_disk(tmp_path: Path) -> None:
    block = blocks.block_device(_mount("/mnt/nvme/x"), _sys(tmp_path))
    assert block == {
        "name": "nvme0n1p1",
        "disk": "nvme0n1",
        "kind": "disk",
        "model": "SAMSUNG MZQL23T8HCLS-00A07",
        "size_bytes": 2048 * 512,
        "backing_file": None,
        "numa_node": 1,
        "rotational": False,
        "scheduler": "none",
        "read_ahead_kb": 128,
        "logical_block_bytes": 512,
        "physical_block_bytes": 4096,
        "max_sectors_kb": 1280,
        "max_hw_sectors_kb": None,
        "max_segments": None,
        "nr_requests": 1023,
        "write_cache": None,
        "below": [],
    }


def test_a_bind_mount_has_the_same_disk(tmp_path: Path) -> None:
    root = _sys(tmp_path)
    block = blocks.block_device(_mount("/srv/bind/x"), root)
    assert block == blocks.block_device(_mount("/mnt/nvme/x"), root)


def test_lvm_lists_the_disks_below(tmp_path: Path) -> None:
    block = blocks.block_device(_mount("/home"), _sys(tmp_path))
    assert block is not None
    assert (block["name"], block["kind"]) == ("dm-0", "device-mapper vg0-root")
    assert block["read_ahead_kb"] == 4096
    below = block["below"]
    assert isinstance(below, list)
    assert [(disk["name"], disk["disk"], disk["rotational"]) for disk in below] == [
        ("nvme0n1p1", "nvme0n1", False),
        ("sda", "sda", True),
    ]
    assert below[1]["scheduler"] == "mq-deadline"


def test_raid_above_lvm_is_followed_down(tmp_path: Path) -> None:
    block = blocks.block_device(_mount("/mnt/raid"), _sys(tmp_path))
    assert block is not None
    assert block["kind"] == "md raid0"
    below = block["below"]
    assert isinstance(below, list)
    assert [disk["name"] for disk in below] == ["dm-0", "sda"]
    assert [disk["name"] for disk in below[0]["below"]] == ["nvme0n1p1", "sda"]


def test_btrfs_has_no_device_number_and_is_found_by_its_source(tmp_path: Path) -> None:
    block = blocks.block_device(_mount("/mnt/btrfs"), _sys(tmp_path))
    assert block is not None
    assert (block["name"], block["disk"]) == ("sdb2", "sdb")


def test_mapper_name_without_a_node(tmp_path: Path) -> None:
    (mount,) = mounts.parse("1 2 0:99 /@ /x rw - btrfs /dev/mapper/vg0-root rw")
    block = blocks.block_device(mount, _sys(tmp_path))
    assert block is not None
    assert block["name"] == "dm-0"


@pytest.mark.parametrize("path", ["/mnt/merged", "/mnt/nfs", "/dev/shm", "/mnt/nvme2"])
def test_no_device_is_null(tmp_path: Path, path: str) -> None:
    assert blocks.block_device(_mount(path), _sys(tmp_path)) is None


def test_loop_device_is_named_and_not_really_cold(tmp_path: Path) -> None:
    facts = mount_facts(_mount("/mnt/image/x"), None, _sys(tmp_path))
    block = facts["block"]
    assert isinstance(block, dict)
    assert block["backing_file"] == "/images/models.squashfs"
    cold = facts["cold"]
    assert isinstance(cold, dict)
    assert cold["kind"] == "own-cache"


@pytest.mark.parametrize("path", ["/mnt/nfs", "/mnt/nfs3", "/mnt/lustre", "/mnt/ceph", "/mnt/v6"])
def test_c93_facts_of_network_mounts_hold_no_addresses(tmp_path: Path, path: str) -> None:
    facts = mount_facts(_mount(path), None, tmp_path)
    written = json.dumps(facts)
    assert "10." not in written
    assert "fd00" not in written
    assert "<address>" in str(facts["source"]) or facts["source"] == "filer:/vol/models"
    assert facts["family"] == "network"


def test_users_names_are_left_out(tmp_path: Path) -> None:
    written = json.dumps(mount_facts(_mount("/mnt/smb"), None, tmp_path))
    assert "alice" not in written
    assert "CORP" not in written
    assert "vers=3.1.1" in written
    written = json.dumps(mount_facts(_mount("/mnt/nfs"), None, tmp_path))
    assert "rsize=1048576" in written


def test_facts_without_mountinfo_are_null(tmp_path: Path) -> None:
    known = mount_facts(_mount("/mnt/nvme"), None, tmp_path)
    assert mount_facts(None, None) == dict.fromkeys(known)


# --- machine

AWS = "Amazon EC2"


@pytest.mark.parametrize(
    ("cpuinfo", "vendor", "product", "expected"),
    [
        ("amd", "", "", None),
        ("amd", AWS, "m7a.metal-48xl", None),
        ("amd", AWS, "m7a.48xlarge", None),  # without the flag it is a bare machine
        ("intel_vm", "", "", "unnamed hypervisor"),
        ("intel_vm", "Google", "Google Compute Engine", "google compute engine"),
        ("intel_vm", "QEMU", "Standard PC", "qemu"),
        ("intel_vm", "VMware, Inc.", "VMware7,1", "vmware"),
        ("intel_vm", "Microsoft Corporation", "Virtual Machine", "hyper-v"),
        ("kunpeng", "", "", None),
        ("kunpeng", "OpenStack Foundation", "KVM Virtual Machine", "openstack"),
        ("kunpeng", "QEMU", "KVM Virtual Machine", "kvm"),
        ("kunpeng", AWS, "c7g.metal", None),
        ("kunpeng", AWS, "c7g.8xlarge", "amazon ec2"),
        ("kunpeng", "Huawei", "TaiShan 200 (Model 2280)", None),
    ],
)
def test_virtual(
    tmp_path: Path, cpuinfo: str, vendor: str, product: str, expected: str | None
) -> None:
    root = tree(
        tmp_path,
        {
            "proc/cpuinfo": fixture(f"cpuinfo_{cpuinfo}.txt"),
            "sys/class/dmi/id/sys_vendor": vendor + "\n",
            "sys/class/dmi/id/product_name": product + "\n",
        },
    )
    assert machine.virtual(root) == expected


def test_virtual_where_little_is_told(tmp_path: Path) -> None:
    assert machine.virtual(tmp_path) is None
    arm = {"proc/cpuinfo": fixture("cpuinfo_kunpeng.txt")}
    compatible = {"proc/device-tree/hypervisor/compatible": "linux,kvm\0"}
    assert machine.virtual(tree(tmp_path / "arm", {**arm, **compatible})) == "linux,kvm"
    xen = {
        "proc/cpuinfo": fixture("cpuinfo_intel_vm.txt"),
        "proc/xen/capabilities": "control_d\n",
        "sys/hypervisor/type": "xen\n",
    }
    assert machine.virtual(tree(tmp_path / "dom0", xen)) is None
    (tmp_path / "dom0/proc/xen/capabilities").write_text("")
    assert machine.virtual(tmp_path / "dom0") == "xen"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({".dockerenv": ""}, "docker"),
        ({"run/.containerenv": ""}, "podman"),
        ({"proc/1/cgroup": "0::/kubepods.slice/kubepods-pod1.slice/cri-1.scope\n"}, "kubernetes"),
        ({"proc/1/cgroup": "3:cpu:/docker/0123\n", ".dockerenv": ""}, "docker"),
        ({"run/secrets/kubernetes.io/serviceaccount/token": "x", ".dockerenv": ""}, "kubernetes"),
        ({"proc/1/cgroup": "0::/init.scope\n"}, None),
        ({"run/systemd/container": "lxc\n"}, "lxc"),
        # A virtual machine whose disk was made from an image.
        (
            {
                ".dockerenv": "",
                "proc/2/comm": "kthreadd\n",
                "proc/self/mountinfo": "27 1 254:0 / / rw - ext4 /dev/vda rw\n",
            },
            None,
        ),
        # A container that shares the host's processes.
        (
            {
                ".dockerenv": "",
                "proc/2/comm": "kthreadd\n",
                "proc/self/mountinfo": "27 1 0:54 / / rw - overlay overlay rw\n",
            },
            "docker",
        ),
    ],
)
def test_container(tmp_path: Path, files: dict[str, str], expected: str | None) -> None:
    assert machine.container(tree(tmp_path, files)) == expected


def test_system_name(tmp_path: Path) -> None:
    tree(tmp_path, {"etc/os-release": 'NAME="openEuler"\nPRETTY_NAME="openEuler 22.03 (LTS)"\n'})
    assert machine.system(tmp_path) == "openEuler 22.03 (LTS)"
    assert machine.system(tmp_path / "none") is None


# --- accelerators


def _pci(address: str, **values: str) -> dict[str, str]:
    base = f"sys/bus/pci/devices/{address}"
    return {f"{base}/{name.replace('klass', 'class')}": f"{v}\n" for name, v in values.items()}


def test_nvidia(tmp_path: Path) -> None:
    files = _pci(
        "0000:18:00.0",
        klass="0x030200",
        vendor="0x10de",
        device="0x2335",
        numa_node="1",
        current_link_speed="32.0 GT/s PCIe",
        current_link_width="16",
        max_link_speed="Unknown",
        max_link_width="255",
    )
    files["proc/driver/nvidia/gpus/0000:18:00.0/information"] = (
        "Model: \t\t NVIDIA H200\nIRQ:   \t\t 283\nGPU UUID: \t GPU-0\n"
    )
    (found,) = accelerators.accelerators(tree(tmp_path, files))
    assert found == {
        "address": "0000:18:00.0",
        "vendor": "NVIDIA",
        "vendor_id": "10de",
        "device_id": "2335",
        "name": "NVIDIA H200",
        "link_speed": "32.0 GT/s PCIe",
        "link_width": 16,
        "max_link_speed": None,
        "max_link_width": None,
        "numa_node": 1,
    }


def test_ascend_and_not_its_management_display(tmp_path: Path) -> None:
    files = {
        **_pci("0000:01:00.0", klass="0x120000", vendor="0x19e5", device="0xd802", numa_node="-1"),
        **_pci("0000:02:00.0", klass="0x030000", vendor="0x19e5", device="0x1711"),
        **_pci("0000:03:00.0", klass="0x030000", vendor="0x1a03", device="0x2000"),
        **_pci("0000:04:00.0", klass="0x010802", vendor="0x144d", device="0xa80a"),
        **_pci("0000:05:00.0", klass="0x038000", vendor="0x1002", device="0x74a1"),
        "dev/davinci0": "",
        "dev/davinci10": "",
        "dev/davinci_manager": "",
        "dev/nvidiactl": "",
        "dev/nvidia0": "",
    }
    root = tree(tmp_path, files)
    found = accelerators.accelerators(root)
    assert [(item["vendor"], item["device_id"]) for item in found] == [
        ("Huawei", "d802"),
        ("AMD", "74a1"),
    ]
    assert found[0]["numa_node"] is None
    assert accelerators.device_nodes(root) == ["/dev/davinci0", "/dev/davinci10", "/dev/nvidia0"]


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5", "550.54.15"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build",
            "570.86.15",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05", "580.95.05"),
        ("something else 1.2.3", None),
    ],
)
def test_nvidia_driver_version(tmp_path: Path, line: str, version: str | None) -> None:
    root = tree(tmp_path, {"proc/driver/nvidia/version": line + "\nGCC version: gcc 12.3.0\n"})
    assert accelerators.drivers(root)["nvidia"] == version


# --- all together


def test_all_facts_are_json_and_name_no_user(tmp_path: Path) -> None:
    facts = host_facts({"here": tmp_path})
    assert json.loads(json.dumps(facts)) == facts
    assert set(facts) >= {"node", "kernel", "cpu", "memory", "virtual", "container", "storage"}
    storage = facts["storage"]
    assert isinstance(storage, dict)
    assert storage["here"]["path"] == str(tmp_path)
    assert storage["here"]["space"]["total_bytes"] > 0


def test_a_path_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        host_facts({"gone": tmp_path / "gone"})


def test_facts_do_not_wait_for_torch() -> None:
    code = (
        "import sys; from pathlib import Path; from bench.host.facts import host_facts\n"
        "facts = host_facts({'x': Path('/')})\n"
        "assert facts['packages']['torch'], facts['packages']\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
