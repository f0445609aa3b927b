// What would happen to the plan that runs if a device were lost or slower, or a link: asked before it happens.

import { useState } from 'preact/hooks';
import { duration, memory } from '../../measures.ts';
import type { WhatIfAnswer, WhatIfChange } from '../messages.ts';
import type { View } from '../view.ts';
import { type Answer, ask } from './source.ts';

/** The question and its answer. */
export function WhatIf({ view }: { readonly view: View }) {
  const names = (view.plan?.stages ?? []).flatMap(({ devices }) => devices);
  const [kind, setKind] = useState<WhatIfChange['kind']>('lose');
  const [device, setDevice] = useState('');
  const [peer, setPeer] = useState('');
  const [amount, setAmount] = useState('10');
  const [answer, setAnswer] = useState<Answer & { readonly isBusy?: boolean }>();
  const chosen = names.includes(device) ? device : (names[0] ?? '');
  const others = names.filter((name) => name !== chosen);
  const other = others.includes(peer) ? peer : (others[0] ?? '');
  const look = async (event: Event): Promise<void> => {
    event.preventDefault();
    setAnswer({ isDone: true, isBusy: true, text: 'Looking…' });
    setAnswer(await ask({ command: 'what-if', change: changeOf(kind, chosen, other, Number(amount)) }));
  };
  return (
    <section class="card what-if" aria-labelledby="what-if-title">
      <h2 id="what-if-title">What if</h2>
      <form onSubmit={(event) => void look(event)}>
        <select aria-label="device" value={chosen} onChange={({ currentTarget }) => setDevice(currentTarget.value)}>
          {names.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
        <select
          aria-label="what happens"
          value={kind}
          onChange={({ currentTarget }) => setKind(currentTarget.value as WhatIfChange['kind'])}
        >
          <option value="lose">is lost</option>
          <option value="slow">runs at half its speed</option>
          <option value="link">has a slow link to</option>
        </select>
        {kind === 'link' && (
          <>
            <select aria-label="peer" value={other} onChange={({ currentTarget }) => setPeer(currentTarget.value)}>
              {others.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
            <label class="amount">
              <input
                type="number"
                min="0.1"
                max="100000"
                step="any"
                value={amount}
                aria-label="megabits a second"
                onInput={({ currentTarget }) => setAmount(currentTarget.value)}
              />
              Mbps
            </label>
          </>
        )}
        <button type="submit" class="primary" disabled={chosen === '' || answer?.isBusy === true}>
          Ask
        </button>
      </form>
      <div role="status" class="answer">
        {answer?.whatIf === undefined ? <p class="dim">{answer?.text ?? ''}</p> : <Outcome answer={answer.whatIf} />}
      </div>
    </section>
  );
}

function changeOf(kind: WhatIfChange['kind'], device: string, peer: string, mbps: number): WhatIfChange {
  if (kind === 'lose') return { kind, device };
  return kind === 'slow' ? { kind, device, share: 0.5 } : { kind, between: [device, peer], mbps };
}

function Outcome({ answer }: { readonly answer: WhatIfAnswer }) {
  const { before, kept, after, pauseMs, movedBytes, stages, remark } = answer;
  const speed = ({ roundMs, samplesPerS }: WhatIfAnswer['before']): string =>
    `${samplesPerS.toFixed(samplesPerS < 100 ? 1 : 0)} samples/s, ${duration(roundMs / 1000)} a round`;
  return (
    <>
      <dl class="facts">
        <dt>Now</dt>
        <dd>{speed(before)}</dd>
        {kept !== undefined && (
          <>
            <dt>Same plan</dt>
            <dd>{speed(kept)}</dd>
          </>
        )}
        <dt>{kept === undefined ? 'Then' : 'New plan'}</dt>
        <dd>{speed(after)}</dd>
        {pauseMs !== undefined && (
          <>
            <dt>Pause</dt>
            <dd>{duration(pauseMs / 1000)}</dd>
          </>
        )}
        <dt>To move</dt>
        <dd>{movedBytes === 0 ? 'nothing' : memory(movedBytes / 2 ** 20)}</dd>
        {stages.map(({ layers, devices }, index) => (
          <>
            <dt>Stage {index}</dt>
            <dd>
              layers {layers[0]}–{layers[1] - 1} on {devices.join(', ')}
            </dd>
          </>
        ))}
      </dl>
      {remark !== undefined && <p class="dim">{remark}</p>}
    </>
  );
}
