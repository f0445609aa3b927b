// Who else may come to a run's server: browsers that look on, and what they may do to the run. The window (src/window)
// is one; the run knows it by this alone.

import type { Guests } from '../../transport/node/websocket-server.ts';
import type { Coordinator } from '../coordinator/coordinator.ts';
import type { AdvertisedAddress } from './addresses.ts';

/** A run as its guests reach it. */
export interface RunHandle extends Partial<Pick<Coordinator, 'drain' | 'scaleLearningRate'>> {
  /** http(s)://HOST:PORT of the server. */
  readonly url: string;
  /** Whether other machines reach it. */
  readonly isFar: boolean;
  /** By which devices join; absent where none is awaited. */
  readonly joinCode?: string;
}

export interface RunGuests {
  /** The guests of a server; `advertised`: what leads to it from elsewhere. */
  guests(server: { readonly isEncrypted: boolean; readonly advertised?: AdvertisedAddress }): Guests;
  /** The server is there. */
  begin(run: RunHandle): void;
  /** The run needs its server no more: who has guests closes it when they have seen how the run ended. */
  end(closeServer: () => Promise<void>): void;
}
