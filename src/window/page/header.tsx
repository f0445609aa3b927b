// The run as a whole: what it is doing, how far it is, and what can be done to it.

import { useEffect, useState } from 'preact/hooks';
import { duration, grouped } from '../../measures.ts';
import type { Abilities, Invitation } from '../messages.ts';
import type { View } from '../view.ts';
import { Dialog } from './dialog.tsx';
import { type Answer, ask, type Source } from './source.ts';

const phases: Readonly<Record<View['phase'], string>> = {
  gathering: 'waiting for devices',
  preparing: 'sending the model',
  connecting: 'connecting devices',
  measuring: 'measuring links',
  profiling: 'measuring layers',
  planning: 'planning',
  deploying: 'moving weights',
  training: 'training',
  snapshotting: 'saving',
  waiting: 'waiting for devices',
  ended: 'ended',
  failed: 'failed',
  stopped: 'stopped',
};

interface HeaderProps {
  readonly view: View;
  readonly can: Abilities;
  readonly connection: Source['connection'];
  readonly isRecording: boolean;
}

/** Name, state, buttons and the numbers that matter most. */
export function Header({ view, can, connection, isRecording }: HeaderProps) {
  const isOver = ['ended', 'failed', 'stopped'].includes(view.phase);
  const state = isRecording ? 'replay' : connection === 'lost' ? 'no connection' : phases[view.phase];
  const tone = view.phase === 'failed' || connection === 'lost' ? 'bad' : isOver || isRecording ? 'plain' : 'good';
  return (
    <header class="top">
      <div class="bar">
        <h1>
          <img src="/icon.svg" alt="" width="26" height="26" />
          <span>{view.model}</span>
        </h1>
        <span class={`chip ${tone}`} role="status">
          {state}
        </span>
        <span class="spacer" />
        {!isOver && !isRecording && <Controls view={view} can={can} />}
      </div>
      <Numbers view={view} isOver={isOver} />
    </header>
  );
}

function Numbers({ view, isOver }: { readonly view: View; readonly isOver: boolean }) {
  const { rounds, round, curve, roundMs, plan, prediction, tests } = view;
  const last = curve.points.at(-1);
  const [end, first] = [rounds?.end ?? 0, rounds?.first ?? 0];
  const isEndless = end > 1e9;
  const fraction = end > first && !isEndless ? (round - first) / (end - first) : 0;
  const leftS = roundMs === null ? Number.NaN : ((end - round) * roundMs) / 1000;
  const predictedMs = prediction?.roundMs ?? plan?.predicted?.roundMs ?? 0;
  const test = tests.at(-1);
  return (
    <dl class="numbers">
      <Figure name="Round" value={grouped(round)} unit={rounds === null || isEndless ? '' : `of ${grouped(end)}`}>
        <progress max="1" value={fraction} aria-label="rounds done" />
      </Figure>
      <Figure
        name="Loss"
        value={last?.loss?.toFixed(4) ?? '–'}
        unit=""
        note={
          test === undefined ? '' : `test ${test.accuracy === null ? test.loss.toFixed(4) : percent(test.accuracy)}`
        }
      />
      <Figure
        name="Speed"
        value={last === undefined ? '–' : grouped(Math.round(last.samplesPerS))}
        unit="samples/s"
        note={rounds === null ? '' : `epoch ${Math.max(1, Math.ceil(round / Math.max(1, rounds.perEpoch)))}`}
      />
      <Figure
        name="Round time"
        value={roundMs === null ? '–' : duration(roundMs / 1000)}
        unit=""
        note={predictedMs > 0 ? `predicted ${duration(predictedMs / 1000)}` : ''}
      />
      <Figure
        name={isOver ? 'Took' : 'Left'}
        value={isOver ? duration((view.atMs - (view.trainingMs ?? 0)) / 1000) : isEndless ? '–' : duration(leftS)}
        unit=""
        note={view.rateFactor === 1 ? '' : `rate × ${view.rateFactor}`}
      />
    </dl>
  );
}

interface FigureProps {
  readonly name: string;
  readonly value: string;
  readonly unit: string;
  readonly note?: string;
  readonly children?: preact.ComponentChildren;
}

function Figure({ name, value, unit, note, children }: FigureProps) {
  return (
    <div class="number">
      <dt>{name}</dt>
      <dd>
        <b>{value}</b> <span>{unit}</span>
        <small>{children ?? note ?? ''}</small>
      </dd>
    </div>
  );
}

function percent(fraction: number): string {
  return `${(fraction * 100).toFixed(1)} %`;
}

function Controls({ view, can }: { readonly view: View; readonly can: Abilities }) {
  const [shown, setShown] = useState<'rate' | 'stop' | 'invite' | undefined>();
  const close = (): void => setShown(undefined);
  return (
    <div class="controls">
      {can.join && (
        <a class="button" href="/join">
          Join with this device
        </a>
      )}
      {can.rate && (
        <button type="button" onClick={() => setShown('rate')}>
          Learning rate
        </button>
      )}
      {can.invite && (
        <button type="button" onClick={() => setShown('invite')}>
          Open elsewhere
        </button>
      )}
      {can.stop && (
        <button type="button" class="danger" onClick={() => setShown('stop')}>
          Stop
        </button>
      )}
      {shown === 'rate' && <RateDialog view={view} onClose={close} />}
      {shown === 'stop' && <StopDialog onClose={close} />}
      {shown === 'invite' && <InviteDialog onClose={close} />}
    </div>
  );
}

function RateDialog({ view, onClose }: { readonly view: View; onClose(): void }) {
  const [factor, setFactor] = useState(view.rateFactor);
  const [answer, setAnswer] = useState<Answer>();
  const rate = view.curve.points.at(-1)?.lr;
  const scheduled = rate === undefined ? undefined : rate / view.rateFactor;
  const set = async (): Promise<void> => setAnswer(await ask({ command: 'learning-rate', factor }));
  return (
    <Dialog title="Learning rate" onClose={onClose}>
      <p>Times what the schedule says, from the next round that nobody has begun on.</p>
      <fieldset class="choices" aria-label="factor">
        {[0.1, 0.5, 1, 2, 10].map((choice) => (
          <button type="button" key={choice} aria-pressed={choice === factor} onClick={() => setFactor(choice)}>
            × {choice}
          </button>
        ))}
      </fieldset>
      <p class="dim">
        {scheduled === undefined ? '' : `${scheduled.toPrecision(3)} becomes ${(scheduled * factor).toPrecision(3)}`}
      </p>
      <p role="status">{answer?.text ?? ''}</p>
      <form method="dialog" class="actions">
        <button type="submit">Close</button>
        <button type="button" class="primary" onClick={() => void set()}>
          Set
        </button>
      </form>
    </Dialog>
  );
}

function StopDialog({ onClose }: { onClose(): void }) {
  const [answer, setAnswer] = useState<Answer>();
  const stop = async (): Promise<void> => setAnswer(await ask({ command: 'stop' }));
  return (
    <Dialog title="Stop the run?" onClose={onClose}>
      <p>The round in progress commits and a checkpoint is written, from which the run can be resumed.</p>
      <p role="status">{answer?.text ?? ''}</p>
      <form method="dialog" class="actions">
        <button type="submit">Close</button>
        <button type="button" class="danger" disabled={answer?.isDone === true} onClick={() => void stop()}>
          Stop the run
        </button>
      </form>
    </Dialog>
  );
}

function InviteDialog({ onClose }: { onClose(): void }) {
  const [invitation, setInvitation] = useState<Invitation>();
  useEffect(() => {
    void ask({ command: 'invite' }).then((answer) => setInvitation(answer.invitation));
  }, []);
  return (
    <Dialog title="Open on another device" onClose={onClose}>
      <p>This link lets one browser in, with all that this one may do.</p>
      {invitation !== undefined && <QrCode rows={invitation.qr} />}
      <p>
        <code class="link">{invitation?.url ?? ''}</code>
      </p>
      <form method="dialog" class="actions">
        <button type="submit">Close</button>
      </form>
    </Dialog>
  );
}

function QrCode({ rows }: { readonly rows: readonly string[] }) {
  const path = rows
    .flatMap((row, y) => [...row].flatMap((cell, x) => (cell === '1' ? [`M${x} ${y}h1v1h-1z`] : [])))
    .join('');
  return (
    <svg class="qr" viewBox={`0 0 ${rows.length} ${rows.length}`} role="img" aria-label="QR code of the link">
      <path d={path} />
    </svg>
  );
}
