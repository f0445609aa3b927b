// The time slider of a finished run.

import { useEffect, useState } from 'preact/hooks';
import { duration } from '../../measures.ts';
import type { View } from '../view.ts';
import { type Source, seek } from './source.ts';

interface ReplayProps {
  readonly view: View;
  readonly recording: NonNullable<Source['recording']>;
}

const [frameMs, playS] = [100, 20] as const;

/** The slider, and a button that plays the run in twenty seconds. */
export function Replay({ view, recording }: ReplayProps) {
  const { endMs, name } = recording;
  const [atMs, setAtMs] = useState(endMs);
  const [isPlaying, setPlaying] = useState(false);
  const go = (toMs: number): void => {
    setAtMs(toMs);
    seek(toMs);
  };
  useEffect(() => {
    if (!isPlaying) return undefined;
    const timer = setInterval(() => {
      setAtMs((before) => {
        const next = Math.min(endMs, before + (endMs * frameMs) / (playS * 1000));
        seek(next);
        if (next >= endMs) setPlaying(false);
        return next;
      });
    }, frameMs);
    return () => clearInterval(timer);
  }, [isPlaying, endMs]);
  const play = (): void => {
    if (!isPlaying && atMs >= endMs) go(0);
    setPlaying(!isPlaying);
  };
  return (
    <section class="card replay" aria-label={`replay of ${name}`}>
      <button type="button" class="primary" onClick={play}>
        {isPlaying ? 'Pause' : 'Play'}
      </button>
      <input
        type="range"
        min="0"
        max={endMs}
        step="any"
        value={atMs}
        aria-label="time"
        aria-valuetext={`${duration(atMs / 1000)}, round ${view.round}`}
        onInput={({ currentTarget }) => go(Number(currentTarget.value))}
      />
      <output>
        {duration(atMs / 1000)} <span class="dim">of {duration(endMs / 1000)}</span>
      </output>
    </section>
  );
}
