"""Host facts: each parser on fixture files and fake trees of /proc and /sys."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.host import accelerators, cpu, machine, meminfo
from bench.host.facts import host_facts
from loaders.system import memory
from loaders.system.files import chosen, cpu_list, number
from tests.tiny_host import fixture, tree

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
    values = memory.parse_meminfo(fixture("meminfo.txt"))
    assert values["MemTotal"] == 1056434212 * 1024
    assert values["HugePages_Total"] == 16
    assert memory.available_on_host(fixture("meminfo.txt")) == 901220400 * 1024


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
