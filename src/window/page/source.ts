// Where the page's view comes from: the server's one WebSocket, live, or the recording of a finished run up to a time.
// Others subscribe, and are told at most once a frame.

import type { Abilities, Command, Invitation, ServerMessage, Timed, WhatIfAnswer } from '../messages.ts';
import { apply, emptyView, type View } from '../view.ts';

/** What the page knows. */
export interface Source {
  view: View | undefined;
  can: Abilities;
  connection: 'opening' | 'open' | 'lost' | 'refused' | 'over';
  /** A finished run. */
  recording: { readonly name: string; readonly events: readonly Timed[]; readonly endMs: number } | undefined;
}

/** The answer to a command. */
export interface Answer {
  readonly isDone: boolean;
  readonly text: string;
  readonly whatIf?: WhatIfAnswer;
  readonly invitation?: Invitation;
}

const nothing: Abilities = { stop: false, drain: false, rate: false, whatIf: false, invite: false, join: false };
const againMs = 1500;

export const source: Source = { view: undefined, can: nothing, connection: 'opening', recording: undefined };

const listeners = new Set<() => void>();
const answers = new Map<number, (answer: Answer) => void>();
let socket: WebSocket | undefined;
let lastId = 0;
let isTold = true;

/** Calls `listener` after each change. Returns a function that ends that. */
export function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function changed(): void {
  if (!isTold) return;
  isTold = false;
  requestAnimationFrame(() => {
    isTold = true;
    for (const listener of listeners) listener();
  });
}

/** Shows the token of the link, if there is one, and connects. */
export async function open(): Promise<void> {
  const token = location.hash.slice(1);
  if (token !== '') {
    history.replaceState(null, '', location.pathname);
    await fetch('/session', { method: 'POST', body: token }).catch(() => undefined);
  }
  const session = await fetch('/session').catch(() => undefined);
  if (session?.status === 401) return end('refused');
  if (session?.ok !== true) return again();
  connect();
}

function end(connection: Source['connection']): void {
  source.connection = connection;
  changed();
}

function again(): void {
  if (source.view?.phase === 'ended' || source.view?.phase === 'stopped' || source.view?.phase === 'failed')
    return end('over');
  end('lost');
  setTimeout(() => void open(), againMs);
}

function connect(): void {
  socket = new WebSocket(`${location.protocol === 'https:' ? 'wss' : 'ws'}://${location.host}/events`);
  socket.onopen = () => end('open');
  socket.onmessage = ({ data }) => hear(JSON.parse(String(data)) as ServerMessage);
  socket.onclose = () => {
    for (const answer of answers.values()) answer({ isDone: false, text: 'The connection was lost.' });
    answers.clear();
    again();
  };
}

function hear(message: ServerMessage): void {
  switch (message.kind) {
    case 'view':
      source.view = message.view;
      source.can = message.can;
      break;
    case 'events':
      for (const [atMs, event] of message.events) if (source.view !== undefined) apply(source.view, event, atMs);
      break;
    case 'recording': {
      const { name, model, events } = message;
      const endMs = events.at(-1)?.[0] ?? 0;
      source.recording = { name, events, endMs };
      source.view = viewAt(model, events, endMs);
      break;
    }
    case 'answer':
    case 'refused': {
      const { kind, id, ...answer } = message;
      answers.get(id)?.({ isDone: kind === 'answer', ...answer });
      answers.delete(id);
      return;
    }
  }
  changed();
}

type WithoutId<C> = C extends unknown ? Omit<C, 'id'> : never;

/** Asks the run for something. */
export function ask(command: WithoutId<Command>): Promise<Answer> {
  if (socket?.readyState !== WebSocket.OPEN)
    return Promise.resolve({ isDone: false, text: 'There is no connection to the run.' });
  const id = ++lastId;
  socket.send(JSON.stringify({ id, ...command }));
  return new Promise((resolve) => answers.set(id, resolve));
}

/** Shows a finished run as it was at a time. */
export function seek(atMs: number): void {
  const { recording, view } = source;
  if (recording === undefined || view === undefined) return;
  source.view = viewAt(view.model, recording.events, atMs);
  changed();
}

function viewAt(model: string, events: readonly Timed[], atMs: number): View {
  const view = emptyView(model);
  for (const [eventMs, event] of events) {
    if (eventMs > atMs) break;
    apply(view, event, eventMs);
  }
  return view;
}
