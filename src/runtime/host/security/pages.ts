// Workers in browsers at a coordinator's server. They have no certificate, by which other workers show who they are
// when they ask for a way to a peer: each gets a secret with its welcome instead.

import { randomBytes } from 'node:crypto';
import type { Hello, Refused } from '../../../transport/handshake.ts';
import { sameSecret } from '../../../transport/node/join-code.ts';
import type { Accepted } from '../../../transport/node/websocket-server.ts';
import { wishSchema } from '../relay.ts';
import type { Door } from './admission.ts';

const secretBytes = 24;

export class Pages {
  readonly #door: Pick<Door, 'admitPage'>;
  /** By device, its secret. */
  readonly #secrets = new Map<string, string>();

  constructor(door: Pick<Door, 'admitPage'>) {
    this.#door = door;
  }

  /** The verdict on a hello. */
  async admit(hello: Hello): Promise<Accepted | Refused> {
    if (hello.purpose === 'relay') return this.#relayed(hello);
    const verdict = await this.#door.admitPage(hello);
    if (verdict.kind === 'refused') return verdict;
    const secret = randomBytes(secretBytes).toString('base64url');
    this.#secrets.set(verdict.name, secret);
    return { ...verdict, facts: { ...verdict.facts, relaySecret: secret } };
  }

  #relayed({ name, credential, facts }: Hello): Accepted | Refused {
    const secret = this.#secrets.get(name);
    if (secret !== undefined && sameSecret(credential, secret) && wishSchema.safeParse(facts).success)
      return { kind: 'accepted', name };
    return { kind: 'refused', reason: "only this run's workers are relayed", retry: false };
  }
}
