"""Small `/proc` and `/sys/fs/cgroup` trees in temporary folders."""

GIB = 1 << 30


def proc(folder, *, total=64 * GIB, available=48 * GIB, cgroup="0::/\n"):
    root = folder / "proc"
    (root / "self").mkdir(parents=True, exist_ok=True)
    lines = [f"MemTotal:       {total // 1024} kB", "MemFree:        1024 kB"]
    lines.append(f"MemAvailable:   {available // 1024} kB")
    (root / "meminfo").write_text("\n".join(lines) + "\n")
    (root / "self" / "cgroup").write_text(cgroup)
    return root


def cgroup(folder, path="/", *, limit="max", usage=0, inactive=0):
    group = folder / "cgroup" / path.strip("/")
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{usage}\n")
    (group / "memory.stat").write_text(f"anon 1\nfile 2\ninactive_file {inactive}\n")
    return folder / "cgroup"
