#!/bin/bash
# Submits all-reduce.sbatch to a SLURM of three hosts, each a slurmd in a network namespace of this
# machine. Needs root, slurm-wlm and munge (Debian); undoes what it did. Run it in the folder of the
# program: bash slurm/three-hosts.sh
set -eu

dir=$(mktemp -d)
lan=sw$$
host=$(hostname)
munge=$dir/munge.socket

# A slurmd in `ip netns exec` would not see its cgroups; only the network and /etc/hosts are the host's.
on() {
  nsenter --net="/run/netns/$lan-$1" unshare --mount bash -c \
    'mount --bind "$0" /etc/hosts; exec "$@"' "$dir/hosts" "${@:2}"
}

clean_up() {
  for file in "$dir"/*.pid; do kill "$(cat "$file")" 2> /dev/null || true; done
  sleep 1
  for name in hub 1 2 3; do ip netns delete "$lan-$name" 2> /dev/null || true; done
  rm -rf "$dir"
}
trap clean_up EXIT

chmod 755 "$dir"
head -c 1024 /dev/urandom > "$dir/munge.key"
chmod 600 "$dir/munge.key"
munged --force --key-file="$dir/munge.key" --socket="$munge" --pid-file="$dir/munged.pid" \
  --log-file="$dir/munged.log" --seed-file="$dir/munged.seed"

ip netns add "$lan-hub"
ip -n "$lan-hub" link add switch type bridge
ip -n "$lan-hub" link set switch up
echo "127.0.0.1 localhost" > "$dir/hosts"
for i in 1 2 3; do
  ip netns add "$lan-$i"
  ip -n "$lan-hub" link add "port$i" type veth peer name eth0 netns "$lan-$i"
  ip -n "$lan-hub" link set "port$i" master switch up
  ip -n "$lan-$i" link set lo up
  ip -n "$lan-$i" addr add "10.77.0.$i/24" dev eth0
  ip -n "$lan-$i" link set eth0 up
  echo "10.77.0.$i node0$i" >> "$dir/hosts"
done

mkdir "$dir/state" "$dir"/spool-node0{1,2,3}
{
  cat << CONF
ClusterName=three
SlurmctldHost=$host(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
CONF
  for i in 1 2 3; do
    echo "NodeName=node0$i NodeHostname=$host NodeAddr=10.77.0.$i Port=1782$i CPUs=2"
  done
  echo "PartitionName=main Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:8"
} > "$dir/slurm.conf"

export SLURM_CONF=$dir/slurm.conf
on 1 slurmctld
for i in 1 2 3; do on "$i" slurmd -N "node0$i"; done
sleep 5 # until the hosts have registered
on 1 sinfo
on 1 sbatch --wait --nodes 3 --ntasks-per-node 2 --output "$dir/output" slurm/all-reduce.sbatch
cat "$dir/output"
