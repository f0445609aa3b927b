// What happened, in words; the newest first.

import { duration } from '../../measures.ts';
import type { View } from '../view.ts';

/** The events. */
export function Notes({ view }: { readonly view: View }) {
  const notes = view.notes.toReversed().slice(0, 100);
  return (
    <section class="card notes" aria-labelledby="notes-title">
      <h2 id="notes-title">Events</h2>
      {notes.length === 0 && <p class="dim">Nothing yet.</p>}
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls can be reached by keyboard. */}
      <ol tabIndex={0} aria-label="events, the newest first">
        {notes.map(({ atMs, label, text, tone }, index) => (
          <li key={`${notes.length - index} ${atMs}`} class={tone}>
            <time>{duration(atMs / 1000)}</time>
            <b>{label}</b>
            <span>{text}</span>
          </li>
        ))}
      </ol>
    </section>
  );
}
