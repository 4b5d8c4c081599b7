"""mpirun of Open MPI and of MPICH over network namespaces: it runs outside of all hosts, on the bridge, with 'ip netns exec' in ssh's place."""
import os
import shutil
import stat


def open_mpi_path():
    return shutil.which("mpirun.openmpi") or shutil.which("orterun")


def mpich_path():
    return shutil.which("mpirun.mpich") or shutil.which("mpiexec.hydra")


def agent(hosts, folder):
    """As ssh: [OPTIONS] HOST COMMAND...; the command is a line for a shell."""
    path = os.path.join(folder, "agent")
    with open(path, "w", encoding="utf-8") as file:
        file.write('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1\nshift\ncase $host in\n')
        for number, name in enumerate(hosts.names):
            own = os.path.join(folder, name)
            os.mkdir(own)
            # A host name and session files of its own: Open MPI's memory is shared within a host.
            file.write(f"  {hosts.address(number)}) exec ip netns exec {name} env NCCL_HOSTID=host-{number} TMPDIR={own} "
                       f"unshare --uts /bin/sh -c \"hostname {name}; $*\" ;;\n")
        file.write("esac\necho \"no such host: $host\" >&2\nexit 1\n")
    os.chmod(path, stat.S_IRWXU)
    return path


def open_mpi(hosts, folder, per_host, *options):
    """The command line up to the program; nothing where there is no such mpirun."""
    if not open_mpi_path():
        return []
    net = f"{hosts.net}.0/24"
    list_of_hosts = ",".join(f"{hosts.address(host)}:{per_host}" for host in range(len(hosts.names)))
    return [open_mpi_path(), "--allow-run-as-root", "--oversubscribe", "-np", str(per_host * len(hosts.names)), "-H", list_of_hosts,
            "--mca", "plm_rsh_agent", agent(hosts, folder), "--mca", "plm", "rsh", "--mca", "oob_tcp_if_include", net,
            "--mca", "btl_tcp_if_include", net, "--mca", "routed", "direct", *options]


def mpich(hosts, folder, per_host, *options):
    if not mpich_path():
        return []
    list_of_hosts = ",".join(hosts.address(host) for host in range(len(hosts.names)))
    return [mpich_path(), "-np", str(per_host * len(hosts.names)), "-hosts", list_of_hosts, "-ppn", str(per_host), "-launcher", "ssh",
            "-launcher-exec", agent(hosts, folder), "-localhost", f"{hosts.net}.254", *options]
