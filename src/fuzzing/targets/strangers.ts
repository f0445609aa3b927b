// Input from anybody on the network before a credential has been shown: packets of multicast DNS, headers, join codes,
// certificate requests.

import assert from 'node:assert/strict';
import type { Socket } from 'node:dgram';
import { EventEmitter } from 'node:events';
import { defined } from '../../assert.ts';
import type { Random } from '../../random.ts';
import { listenFor, speaker } from '../../runtime/host/discovery.ts';
import { mutate } from '../../testing/mutations.ts';
import { createFailureLimiter, hostName, judgeUpgrade } from '../../transport/admission.ts';
import {
  createJoinCode,
  createJoinCodes,
  matchesKeyHash,
  normaliseJoinCode,
  splitJoinCode,
  withKeyHash,
} from '../../transport/node/join-code.ts';
import { createAuthorityMaterial, openAuthority } from '../../transport/node/tls/authority.ts';
import { deviceOf, deviceUri } from '../../transport/node/tls/identity.ts';
import { damagedBytes, damagedText, oneOf, randomBytes } from '../inputs.ts';
import type { Target } from '../target.ts';
import { Refused } from './links.ts';

const clock = { now: () => 0, after: () => () => {} };

/** A socket that sends nothing; `sent` gets what would be sent. */
function silentSocket(sent: (packet: Uint8Array) => void): Socket {
  const socket = Object.assign(new EventEmitter(), {
    bind: (_port: number, _address: string, done: () => void) => done(),
    send: (packet: Uint8Array, ...rest: readonly unknown[]) => {
      sent(Uint8Array.from(packet));
      (rest.at(-1) as () => void)();
    },
    close: (done?: () => void) => done?.(),
  });
  return socket as unknown as Socket;
}

/** A coordinator's announcement. */
async function announcement(url: string): Promise<Uint8Array> {
  const packets: Uint8Array[] = [];
  const bonjour = await speaker(
    '127.0.0.1',
    () => {},
    silentSocket((packet) => packets.push(packet)),
  );
  bonjour.publish({
    name: `asteroid ${url}`,
    type: 'asteroid',
    port: 7070,
    txt: { url, v: '1' },
    probe: false,
    disableIPv6: true,
  });
  await new Promise(setImmediate);
  bonjour.destroy();
  return defined(packets.at(-1), 'an announcement');
}

/**
 * Strange packets are ignored: a coordinator is still found after them, and only what looks like an address is taken
 * for one.
 */
export async function discoveryTarget(): Promise<Target<readonly Uint8Array[]>> {
  const url = 'ws://192.168.1.7:7070';
  const [valid, other] = [await announcement(url), await announcement('wss://10.0.0.1:1')];
  return {
    input: (random) => Array.from({ length: 1 + random.integer(3) }, () => damagedBytes([other], random)),
    async take(packets) {
      const found = new Set<string>();
      const socket = silentSocket(() => {});
      const bonjour = await speaker('127.0.0.1', () => {}, socket);
      listenFor(bonjour, 'asteroid', (heard) => found.add(heard));
      for (const packet of [...packets, valid])
        socket.emit('message', Buffer.from(packet), {
          address: '10.0.0.9',
          port: 5353,
          family: 'IPv4',
          size: packet.length,
        });
      bonjour.destroy();
      assert.ok(found.has(url) || packets.some((packet) => packet.length > 100), 'a coordinator is not heard');
      for (const heard of found) assert.match(heard, /^wss?:\/\/[\w.:[\]-]+$/);
      if (found.size < 2) throw new Refused('the packets announce nobody');
    },
  };
}

interface CodeInput {
  readonly secret: Uint8Array;
  readonly typed: string;
}

/** A code is valid only if it equals the one that was issued. */
export function joinCodeTarget(): Target<CodeInput> {
  const code = (secret: Uint8Array, random: Random): string =>
    random.integer(2) === 0 ? createJoinCode(secret) : withKeyHash(new Uint8Array(32).fill(9), createJoinCode(secret));
  return {
    input(random) {
      const secret = Uint8Array.from({ length: 10 }, () => random.integer(256));
      const typed = code(secret, random);
      const kind = random.integer(8);
      if (kind === 0)
        return { secret, typed: typed.toLowerCase().replaceAll('-', ' ').replaceAll('0', 'o').replaceAll('1', 'l') };
      return { secret, typed: kind === 1 ? typed : damagedText(typed, random) };
    },
    take({ secret, typed }) {
      const codes = createJoinCodes({ clock });
      const issued = codes.issue(secret);
      const parts = splitJoinCode(typed);
      if (parts === undefined) throw new Refused('no code has this length');
      matchesKeyHash(new Uint8Array(32), parts);
      const isSame = parts.secret === normaliseJoinCode(issued);
      assert.equal(codes.check(parts.secret), isSame ? 'valid' : 'wrong');
      if (!isSame) throw new Refused('the code is wrong');
    },
  };
}

interface DoorInput {
  readonly host: string;
  readonly origin: string | undefined;
  readonly address: string;
  readonly names: string;
}

const hosts: readonly string[] = ['192.168.1.7:7070', 'localhost', '[::1]:7070', 'board.local:443', '::ffff:10.0.0.1'];
const names: readonly string[] = [
  `URI:${deviceUri({ role: 'worker', name: 'küche 2' })}`,
  `URI:${deviceUri({ role: 'coordinator', name: 'coordinator' })}`,
  'DNS:localhost',
];

/** Headers and the names in certificates. */
export function headerTarget(): Target<DoorInput> {
  return {
    input: (random) => ({
      host: random.integer(3) === 0 ? oneOf(hosts, random) : damagedText(oneOf(hosts, random), random),
      origin: random.integer(5) === 0 ? 'https://example.org' : undefined,
      address: oneOf(hosts, random),
      names: random.integer(3) === 0 ? oneOf(names, random) : damagedText(oneOf(names, random), random),
    }),
    take({ host, origin, address, names: alternativeNames }) {
      const name = hostName(host);
      assert.ok(name === undefined || /^[0-9a-z:._-]+$/.test(name), `the host name ${name}`);
      const device = deviceOf(alternativeNames);
      if (device !== undefined) assert.equal(`URI:${deviceUri(device)}`, alternativeNames);
      const limiter = createFailureLimiter({ clock, burstCount: 2, regainMs: 1000 });
      for (let count = 0; count < 3; count++) limiter.failed(address);
      assert.ok(!limiter.allows(address));
      const rejection = judgeUpgrade({ host, origin }, new Set(['localhost']));
      if (rejection !== undefined) throw new Refused(`refused: ${rejection.reason}`);
    },
  };
}

/** Made by `createRequest`; its key is lost. */
const request = `-----BEGIN CERTIFICATE REQUEST-----
MIHUMHwCAQAwGjEYMBYGA1UEAxMPQXN0ZXJvaWQgZGV2aWNlMFkwEwYHKoZIzj0C
AQYIKoZIzj0DAQcDQgAETCoBCigazfScNKbFX8oCaLEzH1r7q0lIVjXawGMLl5De
bZOCSPesW3soUnOigb89k/DPtABlxO17laFH9ue87aAAMAoGCCqGSM49BAMCA0gA
MEUCIQC7Ysi5FdiWrH1aSSObTZyB4B6qMlFDwWzlOZsm4iYssgIgZrmPDO29NPqg
3YBeGWG+BtTM15g0p7sXlbE7JD/PSLU=
-----END CERTIFICATE REQUEST-----`;

/** Requests for certificates: only the whole one is signed. */
export async function certificateRequestTarget(): Promise<Target<string>> {
  const nowMs = Date.UTC(2026, 10, 22);
  const authority = await openAuthority(await createAuthorityMaterial(nowMs), () => nowMs);
  const der = Uint8Array.from(Buffer.from(request.split('\n').slice(1, -1).join(''), 'base64'));
  const pem = (bytes: Uint8Array): string =>
    `-----BEGIN CERTIFICATE REQUEST-----\n${Buffer.from(bytes).toString('base64')}\n-----END CERTIFICATE REQUEST-----`;
  return {
    input(random) {
      const kind = random.integer(10);
      if (kind === 0) return request;
      if (kind === 1) return damagedText(request, random);
      return pem(kind === 2 ? randomBytes(random) : mutate(der, random));
    },
    async take(text) {
      assert.match(await authority.issue({ role: 'worker', name: 'kitchen' }, text), /^-----BEGIN CERTIFICATE-----/);
    },
  };
}
