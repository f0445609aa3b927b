// What the page on which a browser joins and the thread that computes say to each other.

import type { PageFacts } from '../serve-page.ts';

/** The page to its thread. */
export type ToCompute =
  | {
      readonly kind: 'join';
      readonly url: string;
      readonly joinCode: string;
      readonly name: string;
      readonly facts: PageFacts;
      readonly threadCount: number;
    }
  | { readonly kind: 'leave' };

/** The thread to its page. */
export type FromCompute =
  | { readonly kind: 'loading' | 'joining' }
  | { readonly kind: 'joined'; readonly name: string; readonly engine: string }
  /** Of the last second, how much was spent computing. */
  | { readonly kind: 'busy'; readonly share: number }
  /** `isLost`: the connection was lost, or could not be had: trying again may help. */
  | { readonly kind: 'ended'; readonly isClean: boolean; readonly isLost: boolean; readonly reason: string };
