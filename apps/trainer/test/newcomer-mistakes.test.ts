// People make these mistakes with the commands. Each one ends with a sentence that says what to do
// and with an exit code that is not 0, and leaves nothing behind.

import {
  cpSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { LETTERS, lettersDirectory } from './support/letters-tokenizer.js';
import { runCli } from './support/run-cli.js';
import { ROOT } from './support/run-flags.js';

interface Mistake {
  readonly mistake: string;
  /** What is typed after `shardweave`. `@` stands for the folder of `FILES`. */
  readonly typed: string;
  readonly says: RegExp;
  /** The exit code. The default is 2, which is a mistake of the caller. */
  readonly code?: number;
}

const TRAIN = 'train --device cpu --model nano --data @text.txt --seq 16 --batch 4 --steps 2';

const MISTAKES: readonly Mistake[] = [
  // The command line
  { mistake: 'a mistyped command', typed: 'trian', says: /got "trian"\. Did you mean train\?/ },
  { mistake: 'no command', typed: '--steps 3', says: /expected a command before --steps: one of/ },
  { mistake: 'a mistyped flag', typed: 'train --modle x', says: /Did you mean --model\?/ },
  {
    mistake: 'a flag of another command',
    typed: 'generate --model @model --steps 3',
    says: /unknown option '--steps'\. .*See --help/,
  },
  {
    mistake: 'a file without its flag',
    typed: 'train my.txt',
    says: /expected flags alone, got "my\.txt"\. See --help/,
  },
  {
    mistake: 'a flag without a value',
    typed: 'train --lr',
    says: /'--lr <X>' argument missing\. See/,
  },
  {
    mistake: 'no number',
    typed: 'train --batch many',
    says: /--batch: expected a whole number of at least 1, got "many"/,
  },
  {
    mistake: 'a number that is none here',
    typed: 'train --lr -1',
    says: /--lr: expected a number of at least 0, got "-1"/,
  },
  {
    mistake: "a device by another tool's name",
    typed: 'train --device cuda',
    says: /--device: expected auto, webgpu, cpu, or an adapter such as .*, or a list/,
  },
  {
    mistake: 'a precision that there is not',
    typed: 'train --precision int8',
    says: /--precision: expected one of fp32, fp16, bf16/,
  },
  // A run in a file
  {
    mistake: 'no such config',
    typed: 'train --config @nowhere.yaml',
    says: /--config: .*nowhere\.yaml can't be read .*Give a YAML or JSON/,
  },
  {
    mistake: 'a mistyped key',
    typed: 'train --config @mistyped.yaml',
    says: /line 2: unknown key "batch_size"\. .*Keys are the flags/,
  },
  {
    mistake: 'a wrong value',
    typed: 'train --config @wrong.yaml',
    says: /line 1: steps: expected a whole number of at least 1, got "ten"/,
  },
  // Data
  {
    mistake: 'no such text',
    typed: `${TRAIN} --data @nowhere.txt`,
    says: /--data: .*nowhere\.txt is not there\. Give a text/,
  },
  {
    mistake: 'a folder with a file that is no text',
    typed: `${TRAIN} --data @`,
    says: /--data: .*wide\.txt is text in UTF-16\. Save it as UTF-8 first/,
  },
  {
    mistake: 'a text that is none',
    typed: `${TRAIN} --data @image.txt`,
    says: /--data: .*image\.txt.*UTF-8.* /,
  },
  {
    mistake: 'an archive of texts',
    typed: `${TRAIN} --data @texts.tar.gz`,
    says: /--data: .*texts\.tar\.gz is an archive \(tar\)\. Unpack it first/,
  },
  {
    mistake: 'a table that is cut off',
    typed: `${TRAIN} --tokenizer gpt2 --data @table.parquet`,
    says: /table\.parquet is no whole table in Parquet \(.*\)\. Get the file anew, or write/,
  },
  {
    mistake: 'a text in UTF-16',
    typed: `${TRAIN} --valid @wide.txt`,
    says: /--valid: .*wide\.txt is text in UTF-16\. Save it as UTF-8 first/,
  },
  {
    mistake: 'a text that is too short',
    typed: `${TRAIN} --data @short.txt`,
    says: /Give a longer text or a smaller --seq/,
  },
  {
    mistake: 'conversations for a model without a template',
    typed: `${TRAIN} --data @chats.jsonl`,
    says: /--data: .*Give /,
  },
  {
    mistake: 'broken JSON',
    typed: `${TRAIN} --model @chatty --data @broken.jsonl`,
    says: /broken\.jsonl, line 2: /,
  },
  {
    mistake: 'JSON that goes too deep',
    typed: `${TRAIN} --model @chatty --data @deep.jsonl`,
    says: /deep\.jsonl, line 2: expected a document, got values in values too deep/,
  },
  {
    mistake: 'JSON that holds no objects',
    typed: `${TRAIN} --model @chatty --data @numbers.json`,
    says: /numbers\.json, line 1: expected an object \{"text"\}.* Write each document as one/,
  },
  {
    mistake: 'nothing to learn',
    typed: `${TRAIN} --model @chatty --data @mute.jsonl`,
    says: /line 1: expected something to learn.*Add what the assistant says/,
  },
  {
    mistake: 'a tokenizer with more tokens than the model',
    typed: `${TRAIN} --tokenizer gpt2`,
    says: /vocabulary ends at 255\. Choose another --tokenizer/,
  },
  {
    mistake: 'validation without data for it',
    typed: `${TRAIN} --eval-every 2`,
    says: /is for --valid or --valid-fraction, .*\. Use --valid or --valid-fraction/,
  },
  // Models
  {
    mistake: 'no such model',
    typed: `${TRAIN} --model gpt3`,
    says: /--model gpt3 is neither a preset \(nano, .*\) nor a directory/,
  },
  {
    mistake: 'a mistyped run for a model',
    typed: `${TRAIN} --model @runs/serch`,
    says: /runs\/serch is neither a preset .* The nearest name here is .*runs\/search\. See --help/,
  },
  {
    mistake: 'a mistyped run, which may be a name of the Hub',
    typed: 'eval --model tooling/test-kt --data @text.txt',
    says: /there is no directory tooling\/test-kt here, .* The nearest name here is tooling\/test-kit\./,
  },
  {
    mistake: 'a mistyped run to write with',
    typed: 'generate --model @runs/serch --prompt Hi',
    says: /got .*runs\/serch, which is not there\. The nearest name here is .*runs\/search\. Train one/,
  },
  {
    mistake: 'a model of the Hub that is not here, without a network',
    typed: `${TRAIN} --model HuggingFaceTB/SmolLM2-135M`,
    says: /no directory HuggingFaceTB\/SmolLM2-135M here, .* not whole in the cache .* HF_HUB_OFFLINE/,
  },
  {
    mistake: 'a folder without a model',
    typed: `${TRAIN} --model @empty`,
    says: /config\.json can't be used .*Give a directory with a GPT-2/,
  },
  {
    mistake: 'another kind of model',
    typed: `${TRAIN} --model @bert`,
    says: /a bert reads text and writes none. Give --task embed, classify or rerank, or a language/,
  },
  {
    mistake: 'weights in another format',
    typed: `${TRAIN} --model @pickled`,
    says: /has weights in pytorch_model\.bin.* Save them as/,
  },
  {
    mistake: 'rows beyond the positions',
    typed: `${TRAIN} --seq 9999`,
    says: /beyond the model's 64 positions\. Use --seq 64 or less/,
  },
  {
    mistake: 'layers that the model has not',
    typed: `${TRAIN} --lora-rank 2 --lora-targets q_proj`,
    says: /Give --lora-targets that the model has/,
  },
  {
    mistake: 'a save for a model',
    typed: 'generate --model @stopped/saves/step-000120 --prompt Hi',
    says: /step-000120 holds a save of a run, and no model\. Make one of it: shardweave convert --from .*step-000120 --out DIR/,
  },
  {
    mistake: 'a run that stopped for a model',
    typed: `${TRAIN} --model @stopped`,
    says: /stopped holds saves of a run, and no model\. Make one of it: shardweave convert --from .*stopped --out/,
  },
  {
    mistake: 'adapters for a model',
    typed: `${TRAIN} --model @adapter`,
    says: /holds adapters, and not the model.* Give that one, and --adapter/,
  },
  // Ranks and memory
  {
    mistake: 'ranks for one',
    typed: `${TRAIN} --strategy single --ranks 2`,
    says: /runs on one rank, got --ranks 2\. Use --strategy fsdp/,
  },
  {
    mistake: 'too many devices',
    typed: `${TRAIN} --device cpu,cpu,cpu`,
    says: /names 3 devices for 2 ranks\. Name one, or one a rank/,
  },
  {
    mistake: 'a budget without offload',
    typed: `${TRAIN} --device-budget 1000000`,
    says: /--device-budget is for --strategy offload.* Use /,
  },
  {
    mistake: 'a budget that nothing fits in',
    typed: `${TRAIN} --strategy offload --device-budget 1000`,
    says: /the run does not fit: --device-budget 1000 is less than .*\. What fits: --device-budget 1MiB/,
  },
  {
    mistake: 'a budget of a few bytes',
    typed: `${TRAIN} --strategy offload --device-budget 10`,
    says: /the run does not fit: --device-budget 10 is too small\. What fits: --device-budget 1MiB/,
  },
  {
    mistake: 'rows for which no array is long enough',
    typed: `${TRAIN} --batch 1000000000`,
    says: /--batch 1000000000 is 500000000 rows of 16 tokens .* What fits: --grad-accum /,
  },
  // Where results go
  {
    mistake: 'a run over another',
    typed: `${TRAIN} --out @run`,
    says: /already holds a run .* Begin it anew with --resume auto, or choose another directory/,
  },
  {
    mistake: 'an --out under a file',
    typed: `${TRAIN} --out @text.txt/run`,
    says: /--out: .* can't be .*Give a directory that can be made/,
  },
  {
    mistake: 'a run over one with saves',
    typed: `${TRAIN} --out @both`,
    says: /already holds a run with saves\. Go on from the newest with --resume auto, or choose another/,
  },
  {
    mistake: 'a place where the system lets nobody make anything',
    typed: `${TRAIN} --cache /proc/nowhere`,
    says: /--cache: .* can't be written .*Give a directory for tokens that can be made/,
  },
  {
    mistake: 'a run that was moved, by its config',
    typed: 'train --config @moved/config.yaml --resume auto',
    says: /was moved, for its out is .*nowhere, which is not there\. Add --out .*moved to go on/,
  },
  {
    mistake: 'saves without a place',
    typed: `${TRAIN} --save-every 5`,
    says: /--save-every is for --out, which is not given\. Use --out/,
  },
  {
    mistake: 'going on without a place',
    typed: `${TRAIN} --resume auto`,
    says: /--resume auto .* Give the --out of the run/,
  },
  {
    mistake: 'a trace in no folder',
    typed: `${TRAIN} --trace @nowhere/trace.json`,
    says: /--trace: .*Give a file in a directory that exists/,
  },
  {
    mistake: 'a rate that is too high',
    typed: `${TRAIN} --lr 1e30 --clip 0 --schedule constant --steps 9`,
    says: /not a number at step \d: the run diverged\. Use a smaller --lr/,
    code: 1,
  },
  // What is done with results
  {
    mistake: 'no model to write with',
    typed: 'generate --prompt Hi',
    says: /required option '--model <DIR\|ORG\/NAME>' not specified\. See/,
  },
  {
    mistake: 'a preset to write with',
    typed: 'generate --model nano --prompt Hi',
    says: /--model: expected a directory .*Train one first/,
  },
  {
    mistake: 'talk with a model that has no template',
    typed: 'generate --model @model --chat --device cpu',
    says: /--chat: .* has no chat template\. Put a/,
  },
  {
    mistake: 'an evaluation without weights',
    typed: 'eval --model micro --data @text.txt',
    says: /--model: .*weights/,
  },
  {
    mistake: 'a GGUF without a tokenizer',
    typed: 'gguf --model @model --out @model.gguf',
    says: /can't be a GGUF, for it has no tokenizer\.json\. Put the model's own there; one that learnt/,
  },
  {
    mistake: 'adapters that are not there',
    typed: 'merge --model @model --adapter @nowhere --out @merged',
    says: /--adapter: .*nowhere can't be used/,
  },
  {
    mistake: 'to look at nothing',
    typed: 'inspect @nowhere',
    says: /nowhere is no directory\. Give a save/,
  },
  {
    mistake: 'a place that the system does not open',
    typed: 'inspect @loop/run',
    says: /loop\/run can't be used \(too many .*\)\. Give another path, or the right to read/,
    code: 1,
  },
  {
    mistake: 'a report of no run',
    typed: 'report @empty --out @report.html',
    says: /empty holds no run .* Give a directory that --out has named/,
  },
];

const folder = `${newFolder()}/`;
afterAll(() => rmSync(folder, { recursive: true }));

const FILES: Readonly<Record<string, string | Uint8Array>> = {
  'text.txt': 'Call me Ishmael. Some years ago, never mind how long. '.repeat(20),
  'short.txt': 'Call me',
  'image.txt': Uint8Array.of(0x89, 0x50, 0x4e, 0x47, 0xff, 0xfe, 0xfd),
  'numbers.json': '[1, 2]',
  'chats.jsonl': '{"messages": [{"role": "user", "content": "Hi"}]}\n',
  'broken.jsonl': '{"text": "Hi"}\n{"text": "Hi}\n',
  'deep.jsonl': `{"text": "Hi"}\n{"text": ${'['.repeat(1e5)}${']'.repeat(1e5)}}\n`,
  'texts.tar.gz': gzipSync('Call me Ishmael. '.repeat(20)),
  // These pass for UTF-8.
  'table.parquet': `PAR1\x15\x04\x15\x10${'\x15\x04'.repeat(100)}PAR1`,
  'wide.txt': Buffer.from('Call me Ishmael. '.repeat(20), 'utf16le'),
  'mute.jsonl': '{"messages": [{"role": "user", "content": "Hi"}]}\n',
  'mistyped.yaml': 'steps: 10\nbatch_size: 4\n',
  'wrong.yaml': 'steps: ten\n',
  'bert/config.json': '{"model_type": "bert"}',
  'pickled/config.json': `{"model_type": "gpt2", "vocab_size": ${LETTERS.vocabSize}, "n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2}`,
  'pickled/pytorch_model.bin': '',
  'adapter/adapter_config.json': '{}',
  'run/events.jsonl': '',
  'runs/search/events.jsonl': '',
  'stopped/saves/step-000120/index.json': '{}',
  'both/metrics.jsonl': '',
  'both/saves/step-000120/index.json': '{}',
  'moved/events.jsonl': '',
  'moved/config.yaml': `out: ${join(tmpdir(), 'nowhere')}\n`,
};

beforeAll(() => {
  mkdirSync(join(folder, 'empty'));
  for (const [name, content] of Object.entries(FILES)) {
    mkdirSync(join(folder, name, '..'), { recursive: true });
    writeFileSync(join(folder, name), content);
  }
  symlinkSync('loop', join(folder, 'loop'));
  cpSync(lettersDirectory(), join(folder, 'chatty'), { recursive: true });
  const tiny = `${ROOT}tooling/reference/data/tiny`;
  for (const name of ['config.json', 'model.safetensors']) {
    cpSync(join(tiny, name), join(folder, 'model', name), { recursive: true });
  }
});

/** Returns everything in the folder, with its size. */
const left = () =>
  readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .map((name) => `${name} ${lstatSync(join(folder, name)).size}`)
    .sort();

describe('a newcomer', () => {
  it('can make thirty mistakes and more', () => {
    expect(MISTAKES.length).toBeGreaterThan(30);
    expect(new Set(MISTAKES.map(({ mistake }) => mistake)).size).toBe(MISTAKES.length);
  });

  it.each(MISTAKES)('makes the mistake: $mistake', async ({ typed, says, code = 2 }) => {
    const before = left();
    const result = await runCli(typed.split(' ').map((word) => word.replace(/^@/, folder)));
    expect(result.err).toMatch(says);
    expect(result.code).toBe(code);
    // The message is one sentence or two, without a stack.
    expect(result.err).toMatch(/^error: [^\n]+[.)]\n$/);
    expect(left()).toEqual(before);
  });
});
