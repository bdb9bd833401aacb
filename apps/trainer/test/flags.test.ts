import { describe, expect, it } from 'vitest';
import { TRAIN } from '../src/config/flags.js';
import { UsageError } from '../src/errors.js';
import { DEFAULT_STEPS, RARE } from '../src/flags/train-flags.js';
import { parseFlags } from './support/parse-flags.js';
import { runCli } from './support/run-cli.js';

const parse = (line: string) => parseFlags(line.split(' ').filter(Boolean), () => {});

describe('the flags of train', () => {
  it('are an interface that stays', () => {
    expect(Object.values(TRAIN.flags).map(({ typed }) => typed)).toEqual([
      '--config <FILE>',
      '--strategy <NAME>',
      '--ranks <N>',
      '--transport <NAME>',
      '--elastic',
      '--min-ranks <N>',
      '--max-ranks <N>',
      '--listen <HOST[:PORT]>',
      '--device <auto|webgpu|cpu>',
      '--threads <N>',
      '--products <auto|wasm|native>',
      '--trace <FILE>',
      '--precision <fp32|fp16|bf16>',
      '--fp32-reduce',
      '--no-reshard',
      '--checkpoint-activations',
      '--gather-cap <BYTES>',
      '--inject-delay-ms <N>',
      '--cpu-offload',
      '--device-budget <BYTES>',
      '--slices <N>',
      '--micro-batches <M>',
      '--offload-dir <DIR>',
      '--fresh',
      '--task <lm|embed|classify|rerank|dpo|orpo>',
      '--model <PRESET|DIR|GGUF|ORG/NAME|FILE.mjs>',
      '--init-from <DIR>',
      '--dropout <P>',
      '--tokenizer <model|byte|gpt2>',
      '--data <FILE|DIR|hf:ORG/NAME,...>',
      '--valid <FILE|DIR|hf:ORG/NAME,...>',
      '--valid-fraction <X>',
      '--eval-every <N>',
      '--eval-batches <N>',
      '--eval-task <tools|exact>',
      '--eval-answers <N>',
      '--train-on-prompt',
      '--cache <DIR>',
      '--order <shuffle|sequential>',
      '--pooling <mean|cls|last>',
      '--temperature <X>',
      '--symmetric',
      '--negatives <N>',
      '--chunk-size <N>',
      '--matryoshka-dims <LIST>',
      '--class-weights <none|balanced>',
      '--dpo-beta <X>',
      '--label-smoothing <P>',
      '--orpo-lambda <X>',
      '--lora-rank <R>',
      '--lora-alpha <X>',
      '--lora-dropout <P>',
      '--lora-targets <NAMES>',
      '--base-type <TYPE>',
      '--adapter <DIR|ORG/NAME>',
      '--batch <B>',
      '--seq <T>',
      '--steps <S>',
      '--epochs <N>',
      '--grad-accum <K>',
      '--gradient-groups <G>',
      '--no-sync',
      '--lr <X>',
      '--weight-decay <X>',
      '--beta1 <X>',
      '--beta2 <X>',
      '--eps <X>',
      '--clip <NORM>',
      '--schedule <constant|cosine|wsd>',
      '--min-lr <X>',
      '--warmup <W>',
      '--decay-steps <N|X>',
      '--patience <N>',
      '--final <best|last>',
      '--time-limit <TIME>',
      '--seed <N>',
      '--save-every <N|Nm>',
      '--keep <N>',
      '--resume <auto|DIR>',
      '--max-restarts <N>',
      '--out <DIR>',
      '--dashboard [PORT]',
      '--check',
      '--log-every <N>',
      '--hash-every <N>',
      '--sample-every <N>',
      '--sample-prompt <TEXT>',
      '--tensorboard',
      '--on-step <CMD>',
      '--quiet',
    ]);
  });

  it('fill --help but for those that few need, which --help all has', () => {
    const typedIn = (...args: string[]) => {
      let help = '';
      expect(() => parseFlags(args, (text) => (help += text))).toThrow();
      const own = help.slice(0, help.indexOf('Examples:'));
      return [...own.matchAll(/^ {2}(--\S.*?)(?: {2}|$)/gm)].map(([, typed]) => typed!.trim());
    };
    const isRare = (name: string) => RARE.includes(name as (typeof RARE)[number]);
    const all = Object.values(TRAIN.flags).map(({ typed }) => typed);
    const usual = Object.entries(TRAIN.flags).filter(([name]) => !isRare(name));
    expect(all.length - usual.length).toBe(9);
    expect(typedIn('--help')).toEqual(usual.map(([, { typed }]) => typed));
    expect(typedIn('--help', 'all')).toEqual(all);
    expect(typedIn('-h', 'all')).toEqual(all);
  });

  it('take names in any case', () => {
    expect(parse('--precision FP32 --base-type Q4_k')).toMatchObject({
      ...{ precision: 'fp32', baseType: 'q4_K' },
    });
  });

  it('take no empty path', async () => {
    for (const line of [
      'doctor --clear-cache=',
      'doctor --cache=',
      'train --out=',
      'report a --out=',
    ]) {
      const { code, out, err } = await runCli(line.split(' '));
      expect({ code, out }).toEqual({ code: 2, out: '' });
      expect(err).toMatch(/^error: --[a-z-]+: expected a path.*, got ""\. See --help\.\n$/);
    }
  });

  it.each(['--help --steps', '--steps --help', '--bogus -h', 'my.txt --help'])(
    'are told by "%s", whatever else is typed',
    (line) => {
      let help = '';
      expect(() => parseFlags(line.split(' '), (text) => (help += text))).toThrow();
      expect(help).toMatch(/^Usage: shardweave train \[flags\]/);
    },
  );

  it('have the defaults that --help prints', () => {
    let help = '';
    expect(() => parseFlags(['--help', 'all'], (text) => (help += text))).toThrow();
    const flags = parse('');
    for (const [name, value] of Object.entries({
      steps: DEFAULT_STEPS,
      batch: flags.batch,
      'weight-decay': flags.weightDecay,
      beta1: flags.beta1,
      beta2: flags.beta2,
      clip: flags.clip,
      seed: flags.seed,
      schedule: flags.schedule,
      strategy: flags.strategy,
      transport: flags.transport,
      model: flags.model,
      order: flags.order,
      precision: flags.precision,
    })) {
      const entry = help.slice(help.indexOf(`--${name} <`)).replace(/\s+/g, ' ');
      expect(entry.match(/\(default: ([^);]*)\)/)?.[1], name).toBe(String(value));
    }
    expect(help).toContain('gpt2-xl');
    expect(help.replace(/\s+/g, ' ')).toContain(
      'peak learning rate (default: 0.004, 0.0003 from 10 M parameters on, and 0.00005 of a trained model with another task than lm)',
    );
  });

  it('read numbers, lists and negations', () => {
    const flags = parse(
      '--no-sync --no-reshard --lr 1e-4 --device cpu,webgpu --gather-cap 1048576',
    );
    expect(flags).toMatchObject({
      sync: false,
      reshard: false,
      lr: 1e-4,
      device: ['cpu', 'webgpu'],
      gatherCap: 1048576,
    });
    expect(parse('')).toMatchObject({ sync: true, reshard: true, quiet: false });
    expect(parse('--device webgpu:0,webgpu:rtx')).toMatchObject({
      device: ['webgpu:0', 'webgpu:rtx'],
    });
  });

  it.each([
    ['--gather-cap 64MB', { gatherCap: 64e6 }],
    ['--gather-cap 64MiB', { gatherCap: 64 * 2 ** 20 }],
    ['--gather-cap 1.5kb', { gatherCap: 1500 }],
    ['--gather-cap 7B', { gatherCap: 7 }],
    ['--device-budget 8GiB', { deviceBudget: 2 ** 33 }],
    ['--device-budget 2e9', { deviceBudget: 2e9 }],
    ['--steps 1e9', { steps: 1e9 }],
    ['--save-every 1e2', { saveEvery: { steps: 100 } }],
  ])('read sizes and counts as people write them: %s', (line, expected) => {
    expect(parse(line)).toMatchObject(expected);
  });

  it.each([
    ['--batch x', '--batch: expected a whole number of at least 1, got "x". See --help.'],
    ['--batch 0', '--batch: expected a whole number of at least 1, got "0". See --help.'],
    ['--steps 1e-9', '--steps: expected a whole number of at least 1, got "1e-9". See --help.'],
    [
      '--steps 99999999999999999999',
      '--steps: expected a whole number of at least 1, at most 9007199254740991, got "99999999999999999999". See --help.',
    ],
    ['--seed 1e16', /a whole number of at least 0, at most 9007199254740991, got "1e16"/],
    [
      '--gather-cap 0MB',
      '--gather-cap: expected a number of bytes of at least 1, such as 64MB, 8GiB or 64000000, got "0MB". See --help.',
    ],
    ['--gather-cap 64iB', /^--gather-cap: expected a number of bytes .*, got "64iB"/],
    ['--gather-cap 64M', /^--gather-cap: expected a number of bytes .*, got "64M"/],
    ['--device-budget -1GB', /^--device-budget: expected a number of bytes .*, got "-1GB"/],
    ['--device-budget 9999999TiB', /such as 64MB, .*, got "9999999TiB"/],
    ['--dropout 1', '--dropout: expected a number from 0 to below 1, got "1". See --help.'],
    ['--lr -1', '--lr: expected a number of at least 0, got "-1". See --help.'],
    ['--lr 0x10', '--lr: expected a number of at least 0, got "0x10". See --help.'],
    [
      '--precision float16',
      '--precision: expected one of fp32, fp16, bf16, got "float16". Did you mean fp16? See --help.',
    ],
    ['--precision half', /got "half"\. Did you mean fp16\? See/],
    ['--precision bfloat16', /got "bfloat16"\. Did you mean bf16\? See/],
    ['--precision fp8', /: expected one of fp32, fp16, bf16, got "fp8"\. See --help\.$/],
    ['--strategy zero3', /got "zero3"\. Did you mean fsdp\? See/],
    ['--schedule cosin', /got "cosin"\. Did you mean cosine\? See/],
    ['--device mps', /got "mps"\. Did you mean webgpu\? See/],
    ['--device cpu,cuda:1', /got "cpu,cuda:1"\. Did you mean cpu,webgpu:1\? See/],
    ['--device tpu,cuda', /got "tpu,cuda"\. See --help\.$/],
    ['--threads 65', '--threads: expected a whole number from 1 to 64, got "65". See --help.'],
    ['--ranks 1e9', '--ranks: expected a whole number from 1 to 65536, got "1e9". See --help.'],
    ['--quiet=1', '--quiet takes no value, got "1". See --help.'],
    ['--no-sync=', '--no-sync takes no value, got "". See --help.'],
    ['--precision int8', '--precision: expected one of fp32, fp16, bf16, got "int8". See --help.'],
    [
      '--device gpu',
      '--device: expected auto, webgpu, cpu, or an adapter such as webgpu:4090 or webgpu:1, or a list of them by rank such as cpu,webgpu, got "gpu". Did you mean webgpu? See --help.',
    ],
    ['--device webgpu:', /an adapter such as webgpu:4090 .*got "webgpu:"/],
    ['--bogus', "unknown option '--bogus'. See --help."],
    ['--modle x', "unknown option '--modle'. Did you mean --model? See --help."],
    ['--batch-size 4', "unknown option '--batch-size'. Here it is --batch. See --help."],
    ['--max_steps 4', "unknown option '--max_steps'. Here it is --steps. See --help."],
    ['--bf16', "unknown option '--bf16'. Here it is --precision bf16. See --help."],
    ['--nproc 4', "unknown option '--nproc'. Here it is --ranks. See --help."],
    ['--wandb', /^unknown option '--wandb'\. Here it is --out, which leaves metrics\.jsonl/],
    ['extra words', 'expected flags alone, got "extra words". See --help.'],
    ['--lr', "option '--lr <X>' argument missing. See --help."],
  ])('refuse "%s" in a sentence', (line, message) => {
    let error: unknown;
    try {
      parse(line);
    } catch (thrown) {
      error = thrown;
    }
    expect(error).toBeInstanceOf(UsageError);
    expect(error).toMatchObject({ exitCode: 2 });
    if (typeof message === 'string') {
      expect((error as Error).message).toBe(message);
    } else {
      expect((error as Error).message).toMatch(message);
    }
  });
});
