// Conversations by a chat template (Jinja), in pieces of which only the assistant's are learnt.

import { z } from 'zod';
import { InputError } from '../../../errors.ts';

const messagesSchema = z.array(z.object({ role: z.string(), content: z.string() })).min(1);

/** A piece of a conversation's text. */
export interface ChatPiece {
  readonly text: string;
  readonly isLearnt: boolean;
}

/** Renders the JSON of a conversation's messages. Throws InputError that begins with the place it is given. */
export type RenderChat = (messages: string, where: string) => readonly ChatPiece[];

/** Compiles a chat template. Throws InputError where it cannot be read. */
export async function chatRenderer(
  template: string,
  specialTokens: Readonly<Record<string, string>>,
): Promise<RenderChat> {
  const { Template } = await loadPackage();
  let compiled: InstanceType<typeof Template>;
  try {
    compiled = new Template(template);
  } catch (error) {
    throw new InputError(`The tokenizer's chat template cannot be read (${(error as Error).message}).`);
  }
  return (text, where) => {
    const messages = messagesOf(text, where);
    const render = (count: number, prompts: boolean): string => {
      try {
        const items = { messages: messages.slice(0, count), add_generation_prompt: prompts, ...specialTokens };
        return compiled.render(items);
      } catch (error) {
        throw new InputError(`${where} does not suit the chat template (${(error as Error).message}).`);
      }
    };
    return piecesOf(messages, render, where);
  };
}

/** A message's text is what its conversation has more than the one before it. */
function piecesOf(
  messages: z.infer<typeof messagesSchema>,
  render: (count: number, prompts: boolean) => string,
  where: string,
): readonly ChatPiece[] {
  const pieces: ChatPiece[] = [];
  let done = '';
  const add = (text: string, isLearnt: boolean): void => {
    if (!text.startsWith(done))
      throw new InputError(
        `${where} is rendered by the chat template as another text when a message is added, so that the assistant's ` +
          'part cannot be told: take another template.',
      );
    if (text.length > done.length) pieces.push({ text: text.slice(done.length), isLearnt });
    done = text;
  };
  for (const [index, { role }] of messages.entries()) {
    if (role !== 'assistant') continue;
    add(render(index, true), false);
    add(render(index + 1, false), true);
  }
  const whole = render(messages.length, false);
  if (whole !== done) add(whole, false);
  return pieces;
}

function messagesOf(text: string, where: string): z.infer<typeof messagesSchema> {
  try {
    return messagesSchema.parse(JSON.parse(text));
  } catch {
    throw new InputError(`${where} is no conversation; it is a list of {"role": "user", "content": "…"}.`);
  }
}

async function loadPackage(): Promise<typeof import('@huggingface/jinja')> {
  try {
    return await import('@huggingface/jinja');
  } catch (error) {
    const [reason] = (error as Error).message.split('\n');
    throw new InputError(
      `Chat templates are read by the package @huggingface/jinja, which is not to be had here (${reason}): npm ` +
        'install @huggingface/jinja.',
    );
  }
}
