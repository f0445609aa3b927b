// The commands that make a lab's network, in order. Pure. Everything stands inside network namespaces, the bridge too:
// the machine's own network is never touched, and removing the namespaces removes all of it.
//
//   device 1 ── eth0 ═ port1 ┐
//   device 2 ── eth0 ═ port2 ├ bridge in the switch's namespace
//   coordinator eth0 ═ port0 ┘
//
//   ═ a veth pair, shaped where it leaves the device (with network 'switch' also where it leaves the bridge)

import type { LabDevice, LabLayout } from './layout.ts';

/** A program and its arguments. */
export type Command = readonly [program: string, ...args: string[]];

const networkBits = 24;

/** The commands that make the network of a lab. */
export function networkCommands(layout: LabLayout): Command[] {
  const { devices, switchNamespace, coordinator } = layout;
  const bridge: Command[] = [
    ['ip', 'netns', 'add', switchNamespace],
    ['ip', '-n', switchNamespace, 'link', 'add', 'bridge', 'type', 'bridge'],
    ['ip', '-n', switchNamespace, 'link', 'set', 'bridge', 'up'],
  ];
  const apart = coordinator.device === undefined ? plug(coordinator.namespace, coordinator.address, 0, layout) : [];
  const plugged = devices.flatMap(({ namespace, address }, index) => plug(namespace, address, index + 1, layout));
  const shaped = devices.flatMap((device, index) =>
    layout.network === 'switch' ? shapePort(device, index, layout) : shapeLinks(device, layout),
  );
  return [...bridge, ...apart, ...plugged, ...shaped];
}

/** A namespace with an interface `eth0` that leads to the bridge. */
function plug(namespace: string, address: string, port: number, { switchNamespace }: LabLayout): Command[] {
  return [
    ['ip', 'netns', 'add', namespace],
    [
      'ip',
      '-n',
      namespace,
      'link',
      'add',
      'eth0',
      'type',
      'veth',
      'peer',
      'name',
      `port${port}`,
      'netns',
      switchNamespace,
    ],
    ['ip', '-n', switchNamespace, 'link', 'set', `port${port}`, 'master', 'bridge', 'up'],
    ['ip', '-n', namespace, 'address', 'add', `${address}/${networkBits}`, 'dev', 'eth0'],
    ['ip', '-n', namespace, 'link', 'set', 'lo', 'up'],
    ['ip', '-n', namespace, 'link', 'set', 'eth0', 'up'],
  ];
}

/**
 * One class for each other device, by the address that a packet goes to; what goes to the coordinator alone is not
 * shaped.
 */
function shapeLinks({ namespace, bandwidthMbps }: LabDevice, { devices }: LabLayout): Command[] {
  const tc = (...args: string[]): Command => ['tc', '-n', namespace, ...args];
  const classes = bandwidthMbps.flatMap((mbps, to): Command[] => {
    const other = devices[to];
    if (mbps === 0 || other === undefined) return [];
    // Class ids are hexadecimal. The quantum only matters to classes that borrow from each other.
    const id = `1:${(to + 1).toString(16)}`;
    const rate = [`${mbps}mbit`, 'burst', burst(mbps), 'cburst', burst(mbps), 'quantum', '60000'];
    return [
      tc('class', 'add', 'dev', 'eth0', 'parent', '1:', 'classid', id, 'htb', 'rate', ...rate),
      tc(
        ...['filter', 'add', 'dev', 'eth0', 'parent', '1:', 'protocol', 'ip', 'prio', '1'],
        ...['u32', 'match', 'ip', 'dst', `${other.address}/32`, 'flowid', id],
      ),
    ];
  });
  return [tc('qdisc', 'add', 'dev', 'eth0', 'root', 'handle', '1:', 'htb'), ...classes];
}

/** A token bucket at each end of the device's cable. */
function shapePort({ namespace, bandwidthMbps }: LabDevice, index: number, { switchNamespace }: LabLayout): Command[] {
  const mbps = Math.max(...bandwidthMbps);
  if (mbps === 0) return []; // a device alone
  const tbf = (inside: string, port: string): Command => [
    ...(['tc', '-n', inside, 'qdisc', 'add', 'dev', port, 'root'] as const),
    ...['tbf', 'rate', `${mbps}mbit`, 'burst', burst(mbps), 'latency', '50ms'],
  ];
  return [tbf(namespace, 'eth0'), tbf(switchNamespace, `port${index + 1}`)];
}

/**
 * Bytes that may leave at once: 2 ms of the bandwidth, so that a late timer loses nothing, and one segment of 64 KiB at
 * least.
 */
function burst(mbps: number): string {
  return `${Math.max(64, Math.ceil((mbps * 1e6 * 0.002) / 8 / 1024))}kb`;
}
