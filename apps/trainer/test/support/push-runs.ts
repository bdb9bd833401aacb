// Two runs that can be pushed, adapters and a whole model, and the played Hub that has their base.
import { cpSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Decoder, type HostTensor, stateDict, writeSafetensors } from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll, afterEach, beforeAll, beforeEach, expect, vi } from 'vitest';
import { newFolder } from '../../../../tooling/test-kit/folders.ts';
import { PlayedHub } from './hub-server.ts';
import { PlayedUploads } from './hub-uploads.ts';
import { runCli } from './run-cli.js';
import { ROOT } from './run-flags.js';

export const BASE = 'ocean/whale';
const CONFIG = {
  model_type: 'llama',
  vocab_size: 512,
  hidden_size: 32,
  intermediate_size: 64,
  num_hidden_layers: 1,
  num_attention_heads: 2,
  max_position_embeddings: 64,
  tie_word_embeddings: true,
} as const;
/** The license of the base. */
export const LICENSE = { license: 'other', license_name: 'whalers' };
/** A name that is in all paths of the runs, and nowhere else. */
export const USER = 'quohog-fisher';

type CliOptions = Parameters<typeof runCli>[1];

/** What the files of tests share as long as their process lives. */
let made: Promise<{ readonly home: string; readonly state: ReadonlyMap<string, HostTensor> }>;

/** The runs, and a Hub for each test. */
export class Pushes {
  hub!: PlayedHub;
  uploads!: PlayedUploads;
  /** The commit of the base. */
  base!: string;
  home!: string;

  get tuned(): string {
    return join(this.home, 'runs/tuned');
  }

  get whole(): string {
    return join(this.home, 'runs/whole');
  }

  get data(): string {
    return join(this.home, 'chats.jsonl');
  }

  run(line: string, options: CliOptions = {}) {
    return runCli(line.split(' '), {
      ...options,
      env: {
        ...{ HF_ENDPOINT: this.hub.endpoint, HF_HOME: join(this.home, 'hf'), HF_HUB_OFFLINE: '' },
        ...{ HF_TOKEN: 'secret', ...options.env },
      },
    });
  }

  /** Pushes the adapters. */
  push(flags: string, options: CliOptions = {}) {
    return this.run(`push --from ${this.tuned} --to ann/whale-lora ${flags}`.trimEnd(), options);
  }

  /** The files of a repository. */
  pushed(repo: string) {
    return this.hub.newest(repo).model!.files;
  }

  async open(state: ReadonlyMap<string, HostTensor>): Promise<void> {
    this.hub = await PlayedHub.open();
    this.uploads = await PlayedUploads.open(this.hub);
    this.uploads.accounts.set('secret', { name: 'ann', orgs: ['ocean'] });
    const tokenizer = (name: string) => readFileSync(`${ROOT}tooling/tokenizer/${name}`);
    this.base = this.hub.push(BASE, {
      files: {
        'config.json': JSON.stringify(CONFIG),
        'model.safetensors': writeSafetensors(state),
        'tokenizer.json': tokenizer('tokenizer.json'),
        'tokenizer_config.json': tokenizer('tokenizer_config.json'),
      },
      info: { cardData: LICENSE },
    });
  }

  async close(): Promise<void> {
    await this.uploads[Symbol.asyncDispose]();
    await this.hub[Symbol.asyncDispose]();
  }
}

/** Gives each test of the file a Hub, and all of them the runs. */
export function usePushes(): Pushes {
  const pushes = new Pushes();
  beforeAll(async () => {
    made ??= makeRuns();
    pushes.home = (await made).home;
    vi.stubEnv('HOME', pushes.home);
  });
  afterAll(() => void vi.unstubAllEnvs());
  beforeEach(async () => await pushes.open((await made).state));
  afterEach(() => pushes.close());
  return pushes;
}

async function makeRuns() {
  const pushes = new Pushes();
  const home = join(newFolder(), USER);
  pushes.home = home;
  vi.stubEnv('HOME', home);
  mkdirSync(home, { recursive: true });
  const { data, tuned, whole } = pushes;
  writeFileSync(data, '{"prompt": "Who?", "completion": "Ahab, whose leg is ivory."}\n'.repeat(9));
  const backend = await createCpuBackend({ threads: 1 });
  const device = new Device(backend);
  const state = await stateDict(new Decoder(device, CONFIG));
  device.dispose();
  await backend.dispose();
  await pushes.open(state);
  const small = `--data ${data} --device cpu --threads 1 --strategy single --seq 16 --batch 2 --quiet --cache ${home}/cache`;
  const lora = await pushes.run(
    `train --model ${BASE} ${small} --lora-rank 2 --steps 3 --valid-fraction 0.3 --eval-every 2 --out ${tuned}`,
  );
  expect([lora.code, lora.err]).toEqual([0, '']);
  mkdirSync(join(home, 'small'));
  const snapshot = join(home, 'hf/hub/models--ocean--whale/snapshots', pushes.base);
  cpSync(snapshot, join(home, 'small'), { recursive: true, dereference: true });
  const all = await pushes.run(`train --model ${home}/small ${small} --steps 2 --out ${whole}`);
  expect([all.code, all.err]).toEqual([0, '']);
  await pushes.run(`gguf --model ${BASE} --adapter ${tuned} --out ${tuned}/mine.gguf`);
  await pushes.close();
  return { home, state };
}
