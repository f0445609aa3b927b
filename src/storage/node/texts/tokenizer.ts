// Tokenizers as Hugging Face writes them (tokenizer.json, tokenizer_config.json), by @huggingface/tokenizers, which is
// loaded where the first is read.

import { basename, dirname, join } from 'node:path';
import { z } from 'zod';
import { InputError } from '../../../errors.ts';
import type { TokenEncoder } from '../../../training/data/texts/text-form.ts';
import { type Disk, errorCode } from '../../disk.ts';
import { readTextFile } from '../text-file.ts';

/** A tokenizer, and what belongs to it. */
export interface LoadedTokenizer {
  readonly encoder: TokenEncoder;
  /** The text of tokenizer.json. */
  readonly text: string;
  /** Of tokenizer_config.json, where there is one. */
  readonly chatTemplate: string | undefined;
  readonly specialTokens: Readonly<Record<string, string>>;
}

type TokenizerClass = typeof import('@huggingface/tokenizers')['Tokenizer'];

async function loadPackage(): Promise<TokenizerClass> {
  try {
    return (await import('@huggingface/tokenizers')).Tokenizer;
  } catch (error) {
    const [reason] = (error as Error).message.split('\n');
    throw new InputError(
      `Texts are read by the package @huggingface/tokenizers, which is not to be had here (${reason}): npm install ` +
        '@huggingface/tokenizers.',
    );
  }
}

const token = z.union([z.string(), z.object({ content: z.string() }).transform(({ content }) => content)]);
const configSchema = z.object({
  chat_template: z.union([z.string(), z.array(z.object({ name: z.string(), template: z.string() }))]).optional(),
  ...Object.fromEntries(
    ['pad_token', 'unk_token', 'eos_token', 'sep_token', 'bos_token'].map((name) => [name, token.nullish()]),
  ),
});

/** Reads tokenizer.json, named itself or by its folder. Throws InputError. */
export async function loadTokenizer(path: string, disk: Disk): Promise<LoadedTokenizer> {
  const file = basename(path).endsWith('.json') ? path : join(path, 'tokenizer.json');
  const text = await readTextFile(file, disk);
  const config = await readConfig(join(dirname(file), 'tokenizer_config.json'), disk);
  const { chat_template: templates, ...tokens } = config;
  const chatTemplate = Array.isArray(templates)
    ? templates.find(({ name }) => name === 'default')?.template
    : templates;
  const specialTokens = Object.fromEntries(
    Object.entries(tokens).filter((entry): entry is [string, string] => typeof entry[1] === 'string'),
  );
  return { encoder: await encoderOf(text, file, specialTokens), text, chatTemplate, specialTokens };
}

async function readConfig(path: string, disk: Disk): Promise<z.infer<typeof configSchema>> {
  try {
    return configSchema.parse(JSON.parse(new TextDecoder().decode(await disk.read(path))));
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return {};
    throw new InputError(`${path} is no tokenizer_config.json that can be read; write or download it again.`);
  }
}

/** Texts of token ids, without special tokens, by a tokenizer.json. Throws InputError. */
export async function decoderOf(text: string): Promise<(ids: readonly number[]) => string> {
  const tokenizer = await parsed(text, 'tokenizer.json');
  return (ids) => tokenizer.decode([...ids], { skip_special_tokens: true });
}

async function parsed(text: string, file: string): Promise<InstanceType<TokenizerClass>> {
  const Tokenizer = await loadPackage();
  try {
    const parts = { normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null };
    return new Tokenizer({ ...parts, ...(JSON.parse(text) as object) }, {});
  } catch (error) {
    throw new InputError(
      `${file} is no tokenizer.json that can be read (${(error as Error).message}); take the one of the ` +
        "model's folder.",
    );
  }
}

/** An encoder of a tokenizer.json. Throws InputError that names `file`. */
export async function encoderOf(
  text: string,
  file: string,
  specialTokens: Readonly<Record<string, string>> = {},
): Promise<TokenEncoder> {
  const tokenizer = await parsed(text, file);
  const idOf = (...names: readonly (string | undefined)[]): number | undefined =>
    names.map((name) => (name === undefined ? undefined : tokenizer.token_to_id(name))).find((id) => id !== undefined);
  const endId = idOf(specialTokens['eos_token'], '<|endoftext|>', '</s>', '<|im_end|>', '[SEP]');
  return {
    encode(one, pair) {
      const { ids, token_type_ids: types } = tokenizer.encode(one, {
        ...(pair === undefined ? {} : { text_pair: pair }),
        return_token_type_ids: true,
      });
      return { ids, types };
    },
    encodePart: (one) => tokenizer.encode(one, { add_special_tokens: false }).ids,
    padId: idOf(specialTokens['pad_token'], '[PAD]', '<pad>') ?? endId ?? 0,
    unknownId: idOf(specialTokens['unk_token'], '[UNK]', '<unk>'),
    endId,
  };
}
