# The process that holds a world's namespaces, started in new ones. It prepares them, says "ready", and waits until the
# harness closes its end of standard input, as it does when it dies, too. Then it ends and removes all that is left.
# Parameters come as environment variables.
set -e
mount -t tmpfs -o mode=755 tmpfs "$DIR/private"
for d in etc opt var/lib; do
	upper="$DIR/private/$d"
	mkdir -p "$upper" "$upper.work"
	mount -t overlay -o "lowerdir=/$d,upperdir=$upper,workdir=$upper.work" overlay "/$d"
done
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /etc/cni/net.d /opt/cni/bin /var/lib/cni /run/netns /run/lock
for p in "$PLUGINS"/*; do ln -s "$p" /opt/cni/bin/; done

ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
# The client's network: a host elsewhere, reached through this node.
ip netns add client
ip link add client0 type veth peer name eth0 netns client
ip addr add "$CLIENT_NET.1/24" dev client0
ip link set client0 up
ip -n client link set lo up
ip -n client addr add "$CLIENT_NET.2/24" dev eth0
ip -n client link set eth0 up
ip -n client route add default via "$CLIENT_NET.1"
# A bridge without CNI, for network namespaces that are given by path.
ip link add plain0 type bridge
ip addr add "$PLAIN_NET.1/24" dev plain0
ip link set plain0 up
echo ready

cat >/dev/null
set +e
exec >/dev/null 2>&1
tries=0
while [ $tries -lt 200 ]; do
	pids=$(find "$CGROUP" -name cgroup.procs -exec cat {} +)
	[ -n "$pids" ] || break
	kill -9 $pids
	sleep 0.05
	tries=$((tries + 1))
done
awk '{ print $5 }' /proc/self/mountinfo | grep "^$DIR/" | sort -r | while read -r m; do umount -l "$m"; done
find /sys/fs/cgroup -depth -type d \( -path "/sys/fs/cgroup/$NAME*" -o -path "/sys/fs/cgroup/*/$NAME*" \) -exec rmdir {} \;
cd /
rm -rf --one-file-system "$DIR"
