// Package children makes containers that go on as the forks of another, by containerd alone: without an engine, as ctr does.
//
// Vocabulary:
//
//   - parent: a container that was forked. A child is made like it: the same image with a snapshot of its own, the same specification but
//     for what must differ (its control group, network namespace and annotations), the same runtime options, labels and extensions.
//   - network: a child's is made as the parent's was. By CNI's default network, where ctr says so in the container's extensions; by a
//     namespace that the caller gives, where the parent was given one; empty, where it has an empty one.
//
// Children look to ctr as its own containers do: what ctr does to end one, its network included, ends them.
//
// It is for hibernatectl: hibernated doesn't link containerd's client.
package children
