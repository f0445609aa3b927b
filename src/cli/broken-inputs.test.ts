// Files as people have them, broken: through the command each ends in one sentence that says what is wrong, where, and
// how to fix it, with exit code 2, and nothing is left in the folder.

import assert from 'node:assert/strict';
import { cp, mkdir, mkdtemp, readdir, readFile, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { runCommand, temporaryFolder, words } from '../testing/command.ts';
import { startCommandHost } from '../testing/command-host.ts';
import { writePictures } from '../testing/picture-folders.ts';

const root = temporaryFolder();
const host = startCommandHost(root);
after(() => host.close());
const fixtures = fileURLToPath(new URL('../../test/fixtures/', import.meta.url));

const latin = Buffer.from('size,label\n1,caf\xe9\n2,tea\n', 'latin1');
const mixed = Buffer.concat([Buffer.from('size,label\n1,café\n2,tea\n3,'), Buffer.from('caf\xe9\n', 'latin1')]);
const rows = 'size,colour,label\n1,red,good\n2,blue,bad\n3,red,good\n4,blue,bad\n';
const texts = 'text,label\nthe film,good\nit was,bad\nwhat film,odd\nis it,bad\n';

/** A file of a fixture with something done to it. */
type Change = (bytes: Buffer) => Buffer | string;
const half: Change = (bytes) => bytes.subarray(0, bytes.length >> 1);
const json =
  (change: (document: Record<string, unknown>) => unknown): Change =>
  (bytes) =>
    JSON.stringify(change(JSON.parse(bytes.toString()) as Record<string, unknown>));

interface Case {
  readonly name: string;
  readonly args: string;
  /** What follows "asteroid: "; "(…)" stands for a library's words in parentheses. */
  readonly says: string;
}

const files: Readonly<Record<string, string | Buffer>> = {
  'notes/a/x.txt': 'no picture',
  'notes/b/x.txt': 'no picture',
  'latin.csv': latin,
  'mixed.csv': mixed,
  'bom.csv': `\ufeff${rows}`,
  'utf16.csv': Buffer.from(`\ufeff${rows}`, 'utf16le').subarray(0, -1),
  'open-quote.csv': 'note,label\n"one\nline",a\n"two,b\nthree,a\n',
  'inner-quote.csv': 'note,label\n12" disc,a\nbook,b\n',
  'ragged.csv': 'size,colour,label\n1,red,good\n2,blue\n3,red,good\n',
  'empty.csv': '',
  'header.csv': 'size,label\n',
  'single.csv': 'size,label\n1,good\n2,good\n',
  'missing.csv': 'size,label\n1,good\n2,\n3,bad\n',
  'twice.csv': 'size,size,label\n1,2,a\n3,4,b\n',
  'rows.csv': rows,
  'new-label.csv': 'size,colour,label\n1,red,good\n2,blue,awful\n',
  'new-columns.csv': 'width,colour,label\n1,red,good\n2,blue,bad\n',
  'broken.jsonl': '{"size":1,"label":"a"}\n{"size":2,"label":\n',
  'texts.csv': texts,
  'foreign.csv': 'text,label\nthe cat sat,good\na \u{1f995} ran,bad\nthe cat ran,good\na dog sat,bad\n',
  'run/config.yaml': 'model: digits\ndata: mnist\n',
  'run/metrics.jsonl': '{"round":0,"epoch":0,"loss":1,"accuracy":0,"samplesPerS":1,"lr":1}\n',
  'run/events.jsonl': '',
  'run/evaluation.json': '{"round": 1, "loss":',
  'chat.jsonl': '{"messages":[{"role":"user","content":"hi"}]}\n{"messages":"hello"}\n',
};

/** Copies of fixtures with one file changed. */
const changed: readonly (readonly [from: string, to: string, file: string, change: Change])[] = [
  ['tables', 'cut-table', 'snappy.parquet', half],
  [
    'texts',
    'no-unknown',
    'tokenizer.json',
    json((all) => ({ ...all, model: { ...(all['model'] as object), unk_token: undefined } })),
  ],
  ['texts', 'cut-tokenizer', 'tokenizer.json', half],
  ['texts', 'other-tokenizer', 'tokenizer.json', (bytes) => `${bytes}`.replace('"film": 8', '"film": 48')],
  ['tables', 'whole-table', 'make_fixtures.py', (bytes) => bytes],
  ['texts', 'whole-tokenizer', 'tokenizer.json', (bytes) => bytes],
  ['checkouts/bert', 'cut-config', 'config.json', half],
  ['checkouts/bert', 'other-config', 'config.json', json((all) => ({ ...all, model_type: 'mamba' }))],
  ['checkouts/bert', 'no-width', 'config.json', json(({ hidden_size: _, ...rest }) => rest)],
  ['checkouts/bert', 'wider', 'config.json', json((all) => ({ ...all, intermediate_size: 99 }))],
  ['checkouts/bert', 'odd-heads', 'config.json', json((all) => ({ ...all, num_attention_heads: 7 }))],
  ['checkouts/bert', 'cut-weights', 'model.safetensors', half],
  ['checkouts/bert', 'bert', 'config.json', (bytes) => bytes],
  [
    'checkouts/qwen2',
    'bad-index',
    'model.safetensors.index.json',
    () => '{"weight_map": {"a": "../secret.safetensors"}}',
  ],
  [
    'checkouts/qwen2',
    'absent-shard',
    'model.safetensors.index.json',
    (bytes) => `${bytes}`.replaceAll('00003', '00009'),
  ],
  ['adapters/bert/start', 'cut-adapter', 'adapter_config.json', half],
  ['adapters/bert/start', 'cut-adapter-weights', 'adapter_model.safetensors', half],
  ['adapters/bert/start', 'dora', 'adapter_config.json', json((all) => ({ ...all, use_dora: true }))],
  ['adapters/bert/start', 'other-rank', 'adapter_config.json', json((all) => ({ ...all, r: 5 }))],
  ['adapters/llama/start', 'llama-adapter', 'adapter_config.json', (bytes) => bytes],
];

before(async () => {
  await writePictures(join(root, 'pictures'), ['cat', 'dog'], 2);
  const picture = await readFile(join(root, 'pictures/cat/1.jpg'));
  await writePictures(join(root, 'single'), ['dog'], 2);
  await writePictures(join(root, 'hollow'), ['dog'], 2);
  await mkdir(join(root, 'hollow/cat'));
  for (const [folder, file, content] of [
    ['cut', 'cat/9.jpg', picture.subarray(0, picture.length >> 1)],
    ['named', 'cat/9.jpg', Buffer.from('RIFF of something else')],
    ['zero', 'dog/9.png', Buffer.alloc(0)],
  ] as const) {
    await cp(join(root, 'pictures'), join(root, folder), { recursive: true });
    await writeFile(join(root, folder, file), content);
  }
  await cp(join(root, 'pictures'), join(root, 'parts/train'), { recursive: true });
  await writePictures(join(root, 'parts/val'), ['cat', 'fox'], 1);
  for (const [name, content] of Object.entries(files)) {
    await mkdir(dirname(join(root, name)), { recursive: true });
    await writeFile(join(root, name), content);
  }
  for (const [from, to, file, change] of changed) {
    await cp(join(fixtures, from), join(root, to), { recursive: true });
    await writeFile(join(root, to, file), change(await readFile(join(fixtures, from, file))));
  }
});

const pictures = 'train --model conv-s:input=16,channels=3 --data images:';
const table = 'train --model mlp --data table:';
const checkout = '--data text:../texts.csv --tokenizer ../whole-tokenizer';

const cases: readonly Case[] = [
  {
    name: 'a truncated JPEG',
    args: `${pictures}../cut`,
    says:
      '../cut/cat/9.jpg cannot be used: it is no picture that can be decoded (…); replace or remove it, or ' +
      'leave such files out with --on-bad-file skip.',
  },
  {
    name: 'a file that its name calls a JPEG',
    args: `${pictures}../named`,
    says:
      '../named/cat/9.jpg cannot be used: it is no picture that can be decoded (…); replace or remove it, or ' +
      'leave such files out with --on-bad-file skip.',
  },
  {
    name: 'an empty picture',
    args: `${pictures}../zero`,
    says:
      '../zero/dog/9.png cannot be used: it is empty; replace or remove it, or leave such files out with ' +
      '--on-bad-file skip.',
  },
  {
    name: 'folders without pictures',
    args: `${pictures}../notes`,
    says:
      'The class folder ../notes/a holds no picture (JPEG, PNG, WebP, GIF, TIFF or AVIF by its name): add ' +
      'some, or remove it.',
  },
  {
    name: 'an empty class folder',
    args: `${pictures}../hollow`,
    says:
      'The class folder ../hollow/cat holds no picture (JPEG, PNG, WebP, GIF, TIFF or AVIF by its name): add ' +
      'some, or remove it.',
  },
  {
    name: 'one class only',
    args: `${pictures}../single`,
    says: '../single holds one class only (dog), and nothing can be told apart: add another class folder.',
  },
  {
    name: 'a class that only the test pictures have',
    args: `${pictures}../parts`,
    says:
      '../parts/val/fox is a class that the training pictures do not have; these are cat, dog: rename or move ' +
      'that folder, or train with pictures of the class.',
  },
  {
    name: 'a table in Latin-1',
    args: `${table}../latin.csv`,
    says: '../latin.csv, line 2, is not UTF-8 text; save the file as UTF-8.',
  },
  {
    name: 'a table in two encodings',
    args: `${table}../mixed.csv`,
    says: '../mixed.csv, line 4, is not UTF-8 text; save the file as UTF-8.',
  },
  {
    name: 'UTF-16 that is cut off',
    args: `${table}../utf16.csv`,
    says: '../utf16.csv, line 2, is not UTF-8 text; save the file as UTF-8.',
  },
  {
    name: 'a quotation mark that does not close',
    args: `${table}../open-quote.csv`,
    says: '../open-quote.csv, line 4, has a quotation mark that does not close; correct that line.',
  },
  {
    name: 'a quotation mark inside a cell',
    args: `${table}../inner-quote.csv`,
    says:
      '../inner-quote.csv, line 2, has a quotation mark inside a cell; put the cell in quotes and double that ' +
      'mark.',
  },
  {
    name: 'ragged rows',
    args: `${table}../ragged.csv`,
    says: '../ragged.csv, line 3, has 2 columns, but the first line has 3; every line needs the same.',
  },
  {
    name: 'an empty table',
    args: `${table}../empty.csv`,
    says: '../empty.csv is empty; a table with one line a sample is needed.',
  },
  {
    name: 'a table with a header only',
    args: `${table}../header.csv`,
    says: '../header.csv holds no samples; at least one is needed.',
  },
  {
    name: 'a table of one class',
    args: `${table}../single.csv`,
    says:
      '../single.csv has one class only (good) in the column label, and nothing can be told apart: add rows ' +
      'of another, or name another column with --label.',
  },
  {
    name: 'a row without a label',
    args: `${table}../missing.csv`,
    says: '../missing.csv, line 3, has no value in the label column label: complete or remove them.',
  },
  {
    name: 'two columns of one name',
    args: `${table}../twice.csv`,
    says: '../twice.csv has two columns named "size": rename one of them.',
  },
  {
    name: 'a byte order mark before a missing column',
    args: `${table}../bom.csv --label sze`,
    says: '../bom.csv has no column sze; its columns are size, colour, label.',
  },
  {
    name: 'a test label that training lacks',
    args: `${table}../rows.csv --eval-data table:../new-label.csv`,
    says:
      '../new-label.csv, line 3, has the label "awful", which the training data do not have; these have bad, ' +
      'good: correct that label, or train with rows of it.',
  },
  {
    name: 'test data with other columns',
    args: `${table}../rows.csv --eval-data table:../new-columns.csv`,
    says: '../new-columns.csv has no column size; its columns are width, colour, label.',
  },
  {
    name: 'JSON lines with a broken line',
    args: `${table}../broken.jsonl`,
    says: '../broken.jsonl, line 2, is no JSON object; write one sample a line, as {"text": "…", "label": 0}.',
  },
  {
    name: 'a Parquet file that is cut off',
    args: `${table}../cut-table/snappy.parquet`,
    says: '../cut-table/snappy.parquet is not a Parquet file that can be read (…); write or download it again.',
  },
  {
    name: 'a Parquet file of another schema',
    args: `${table}../rows.csv --eval-data table:../whole-table/snappy.parquet`,
    says: '../whole-table/snappy.parquet has no column size; its columns are a, b, label.',
  },
  {
    name: 'a table without texts',
    args: 'train --model ../bert --data text:../rows.csv --columns note --tokenizer ../whole-tokenizer',
    says: '../rows.csv has no column note; its columns are size, colour, label.',
  },
  {
    name: 'an unknown token',
    args: 'train --model ../bert --data text:../foreign.csv --tokenizer ../no-unknown',
    says:
      '../foreign.csv, line 2, has a token that the tokenizer does not know, and it has none for unknown ' +
      'ones: take the tokenizer that belongs to the model.',
  },
  {
    name: 'a tokenizer of another vocabulary',
    args: `train --model ../bert --data text:../texts.csv --tokenizer ../other-tokenizer`,
    says:
      '../texts.csv, line 2, has the token 48, and the model embeds 48 tokens: this tokenizer is another ' +
      `model's; take its own.`,
  },
  {
    name: 'a tokenizer that is cut off',
    args: 'train --model ../bert --data text:../texts.csv --tokenizer ../cut-tokenizer',
    says:
      "../cut-tokenizer/tokenizer.json is no tokenizer.json that can be read (…); take the one of the model's " +
      'folder.',
  },
  {
    name: 'a conversation that is none',
    args: 'train --model ../bert --data text:../chat.jsonl --tokenizer ../whole-tokenizer',
    says: '../chat.jsonl, line 2, is no conversation; it is a list of {"role": "user", "content": "…"}.',
  },
  {
    name: 'a config.json that is cut off',
    args: `train --model ../cut-config ${checkout}`,
    says: '../cut-config/config.json is not JSON; download it again.',
  },
  {
    name: 'a config.json of an unknown family',
    args: `train --model ../other-config ${checkout}`,
    says:
      '../other-config/config.json is of the model_type "mamba", which is not built in (there are: bert, ' +
      'distilbert, roberta, vit, deit, resnet, mobilenet_v2, efficientnet, gpt2, llama, qwen2); export it to ONNX.',
  },
  {
    name: 'a config.json without a width',
    args: `train --model ../no-width ${checkout}`,
    says:
      '../no-width/config.json: "hidden_size" is missing, wrong or not supported (…); take the config.json ' +
      'that belongs to the weights, or export the net to ONNX.',
  },
  {
    name: 'a config.json of other weights',
    args: `train --model ../wider ${checkout}`,
    says:
      'The weights in ../wider have bert.encoder.layer.0.intermediate.dense.weight as float32 [24, 16], and ' +
      'config.json makes it float [99, 16]: they do not belong to its config.json; download both again.',
  },
  {
    name: 'a config.json whose sizes do not fit',
    args: `train --model ../odd-heads ${checkout}`,
    says:
      '../odd-heads/config.json: its sizes do not fit together (16 columns are not to be shared among 7 ' +
      'heads); take the config.json that belongs to the weights.',
  },
  {
    name: 'weights that are cut off',
    args: `train --model ../cut-weights ${checkout}`,
    says:
      '../cut-weights/model.safetensors is not a valid safetensors file: at byte 12806 the file ends inside ' +
      'the tensor bert.encoder.layer.0.attention.self.value.weight; write or download it again.',
  },
  {
    name: 'an index that leads out of its folder',
    args: `train --model ../bad-index ${checkout}`,
    says:
      '../bad-index/model.safetensors.index.json names "../secret.safetensors", which is no safetensors file ' +
      'in its folder; take the index of the checkout.',
  },
  {
    name: 'an index of a part that is not there',
    args: `train --model ../absent-shard ${checkout}`,
    says:
      '../absent-shard/model.safetensors.index.json names model-00009-of-00007.safetensors, which is not in ' +
      '../absent-shard: download it, too.',
  },
  {
    name: 'an adapter_config.json that is cut off',
    args: `train --model ../bert ${checkout} --adapter ../cut-adapter`,
    says: '../cut-adapter/adapter_config.json is not JSON; download it again.',
  },
  {
    name: 'an adapter of another kind',
    args: `train --model ../bert ${checkout} --adapter ../dora`,
    says:
      '../dora/adapter_config.json: "use_dora" is missing, wrong or not supported (…); adapters are LoRA, ' +
      'without biases.',
  },
  {
    name: 'an adapter of another rank',
    args: `train --model ../bert ${checkout} --adapter ../other-rank`,
    says:
      '../other-rank/adapter_model.safetensors has bert.encoder.layer.0.attention.output.dense with rank 4, ' +
      'and ../other-rank/adapter_config.json says 5: they do not belong together; copy both again.',
  },
  {
    name: 'an adapter whose weights are cut off',
    args: `train --model ../bert ${checkout} --adapter ../cut-adapter-weights`,
    says:
      '../cut-adapter-weights/adapter_model.safetensors is not a valid safetensors file: at byte 3438 the ' +
      'file ends inside the tensor base_model.model.bert.encoder.layer.0.attention.self.value.lora_A.weight; ' +
      'write or download it again.',
  },
  {
    name: 'the test of a run that is cut off',
    args: 'report ../run',
    says: '../run/evaluation.json is not what a run writes about its test: remove it, or test the run again.',
  },
  {
    name: 'a prediction by what is no run',
    args: 'predict --model ../pictures ../pictures/cat/1.jpg',
    says: 'The model ../pictures/model.onnx cannot be read (there is no such file): check the path given to --model.',
  },
  {
    name: 'an adapter of another model',
    args: `train --model ../bert ${checkout} --adapter ../llama-adapter`,
    says:
      '../llama-adapter/adapter_model.safetensors adapts model.layers.0.mlp.down_proj, which is no linear ' +
      'layer of the model: take its own adapter.',
  },
];

for (const [index, { name, args, says }] of cases.entries()) {
  test(name, async () => {
    const cwd = await mkdtemp(join(root, 'cwd-'));
    const all = args.startsWith('train') ? `${args} --batch 2 --steps 1 --out run` : args;
    const end = index === 0 ? await runCommand(words(all), { cwd }) : await host.run({ args: words(all), cwd });
    const [, sentence = ''] = /^asteroid: ([^\n]+\.)\n$/.exec(end.stderr) ?? assert.fail(end.stderr);
    assert.equal(says.includes('(…)') ? sentence.replace(/ \([^\n]+\)(?=;)/, ' (…)') : sentence, says);
    assert.equal(end.code, 2);
    assert.equal(end.stdout, '');
    assert.deepEqual(await readdir(cwd), [], 'nothing is left behind');
  });
}
