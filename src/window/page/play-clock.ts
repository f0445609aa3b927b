// The time within the round that is played.

import { useEffect, useMemo, useRef } from 'preact/hooks';
import type { Play } from '../play.ts';

/** Milliseconds in which a round is played. */
export const playMs = 6000;

/** Tells subscribers the time within the round: in each frame, or, where motion is not wanted, at one moment. */
export interface PlayClock {
  subscribe(listener: (atMs: number) => void): () => void;
}

/** The clock of a round. */
export function usePlayClock(play: Play | undefined): PlayClock {
  const listeners = useRef(new Set<(atMs: number) => void>());
  const lengthMs = play?.lengthMs ?? 0;
  useEffect(() => {
    if (lengthMs === 0) return undefined;
    const still = matchMedia('(prefers-reduced-motion: reduce)');
    let frame = 0;
    const tell = (atMs: number): void => {
      for (const listener of listeners.current) listener(atMs);
    };
    const step = (nowMs: number): void => {
      tell(still.matches ? lengthMs / 2 : ((nowMs % playMs) / playMs) * lengthMs);
      frame = still.matches ? 0 : requestAnimationFrame(step);
    };
    const begin = (): void => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(step);
    };
    begin();
    still.addEventListener('change', begin);
    return () => {
      cancelAnimationFrame(frame);
      still.removeEventListener('change', begin);
    };
  }, [lengthMs, play]);
  return useMemo(
    () => ({
      subscribe(listener) {
        listeners.current.add(listener);
        return () => listeners.current.delete(listener);
      },
    }),
    [],
  );
}
