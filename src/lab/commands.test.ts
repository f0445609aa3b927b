// The commands of a lab's network, literally.

import assert from 'node:assert/strict';
import test from 'node:test';
import { networkCommands } from './commands.ts';
import { type LabLayout, labLayout, type NetworkForm } from './layout.ts';

function commands(network: NetworkForm, dataDevice?: string): string[] {
  const layout: LabLayout = labLayout(
    {
      devices: [
        { name: 'a', memoryMiB: 512 },
        { name: 'b', memoryMiB: 512 },
      ],
      links: { default: { bandwidthMbps: 1000 } },
      ...(dataDevice === undefined ? {} : { dataDevice }),
    },
    { name: 'x', network, coreCount: 2 },
  );
  return networkCommands(layout).map((command) => command.join(' '));
}

const bridge = [
  'ip netns add asteroid-x-switch',
  'ip -n asteroid-x-switch link add bridge type bridge',
  'ip -n asteroid-x-switch link set bridge up',
];

const plug = (place: string, address: string, port: number): string[] => [
  `ip netns add asteroid-x-${place}`,
  `ip -n asteroid-x-${place} link add eth0 type veth peer name port${port} netns asteroid-x-switch`,
  `ip -n asteroid-x-switch link set port${port} master bridge up`,
  `ip -n asteroid-x-${place} address add ${address}/24 dev eth0`,
  `ip -n asteroid-x-${place} link set lo up`,
  `ip -n asteroid-x-${place} link set eth0 up`,
];

test('a link for each pair: a class by destination', () => {
  assert.deepEqual(commands('links'), [
    ...bridge,
    ...plug('coordinator', '10.77.0.254', 0),
    ...plug('1', '10.77.0.1', 1),
    ...plug('2', '10.77.0.2', 2),
    'tc -n asteroid-x-1 qdisc add dev eth0 root handle 1: htb',
    'tc -n asteroid-x-1 class add dev eth0 parent 1: ' +
      'classid 1:2 htb rate 1000mbit burst 245kb cburst 245kb quantum 60000',
    'tc -n asteroid-x-1 filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst 10.77.0.2/32 flowid 1:2',
    'tc -n asteroid-x-2 qdisc add dev eth0 root handle 1: htb',
    'tc -n asteroid-x-2 class add dev eth0 parent 1: ' +
      'classid 1:1 htb rate 1000mbit burst 245kb cburst 245kb quantum 60000',
    'tc -n asteroid-x-2 filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst 10.77.0.1/32 flowid 1:1',
  ]);
});

test('a switch: a token bucket at each end of a cable; a coordinator on the data device has no own cable', () => {
  assert.deepEqual(commands('switch', 'a'), [
    ...bridge,
    ...plug('1', '10.77.0.1', 1),
    ...plug('2', '10.77.0.2', 2),
    'tc -n asteroid-x-1 qdisc add dev eth0 root tbf rate 1000mbit burst 245kb latency 50ms',
    'tc -n asteroid-x-switch qdisc add dev port1 root tbf rate 1000mbit burst 245kb latency 50ms',
    'tc -n asteroid-x-2 qdisc add dev eth0 root tbf rate 1000mbit burst 245kb latency 50ms',
    'tc -n asteroid-x-switch qdisc add dev port2 root tbf rate 1000mbit burst 245kb latency 50ms',
  ]);
});
