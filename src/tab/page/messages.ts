// What the page on which a browser joins, its thread for links and the engine's thread say to each other.

import type { DeviceChoice } from '../../engine/engine.ts';
import type { PageFacts } from '../serve-page.ts';

/** What the engine's thread is started with. */
export interface EngineSettings {
  readonly device: DeviceChoice;
  readonly threadCount: number;
}

/** The page to its thread. */
export type ToCompute =
  | {
      readonly kind: 'join';
      readonly url: string;
      readonly joinCode: string;
      readonly name: string;
      readonly facts: PageFacts;
      readonly engine: EngineSettings;
    }
  | { readonly kind: 'leave' };

/** The thread to its page. */
export type FromCompute =
  | { readonly kind: 'loading' | 'joining' }
  | { readonly kind: 'joined'; readonly name: string }
  /** Where it computes and why, and what the graphics chip does not; a sentence. */
  | { readonly kind: 'place'; readonly text: string }
  /** Of the last second, how much was spent computing. */
  | { readonly kind: 'busy'; readonly share: number }
  /** `isLost`: the connection was lost, or could not be had: trying again may help. */
  | { readonly kind: 'ended'; readonly isClean: boolean; readonly isLost: boolean; readonly reason: string };
