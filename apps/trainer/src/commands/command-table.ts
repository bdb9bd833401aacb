// Every command of `shardweave`. Each is a file of this folder that is loaded only when it is
// called, so that --help and a mistyped name don't load the engine.

import type { CliCommand } from './cli-command.js';

export interface CommandEntry {
  readonly name: string;
  /** The description of the command, in one line. */
  readonly summary: string;
  readonly load: () => Promise<CliCommand>;
}

export const COMMANDS: readonly CommandEntry[] = [
  {
    name: 'train',
    summary: 'train or fine-tune a GPT-2, Llama or Qwen over several ranks',
    load: async () => (await import('./train.js')).train,
  },
  {
    name: 'join',
    summary: 'add a rank to an elastic job, from this machine or another',
    load: async () => (await import('./join.js')).join,
  },
  {
    name: 'leave',
    summary: 'let the ranks that join has added leave their jobs',
    load: async () => (await import('./leave.js')).leave,
  },
  {
    name: 'plan',
    summary: 'what a run would take, by strategy, and whether it fits here',
    load: async () => (await import('./plan.js')).plan,
  },
  {
    name: 'generate',
    summary: 'continue a text, or talk with a model',
    load: async () => (await import('./generate.js')).generateText,
  },
  {
    name: 'eval',
    summary: 'loss, perplexity and bits per byte of a model on a text',
    load: async () => (await import('./eval.js')).evalCommand,
  },
  {
    name: 'embed',
    summary: 'vectors of texts, and hard negatives for pairs',
    load: async () => (await import('./embed.js')).embed,
  },
  {
    name: 'verify',
    summary: 'compute steps of a run again, and compare them to the bit',
    load: async () => (await import('./verify.js')).verify,
  },
  {
    name: 'replay',
    summary: 'one step of a run again, each of its rows alone',
    load: async () => (await import('./replay.js')).replay,
  },
  {
    name: 'bisect',
    summary: 'the first step in which two runs part, and why',
    load: async () => (await import('./bisect.js')).bisect,
  },
  {
    name: 'report',
    summary: 'lay runs over each other on one page',
    load: async () => (await import('./report.js')).report,
  },
  {
    name: 'dashboard',
    summary: 'all runs under a folder on one page, live and finished',
    load: async () => (await import('./dashboard.js')).dashboard,
  },
  {
    name: 'inspect',
    summary: 'what a save, a run, a model or adapters hold',
    load: async () => (await import('./inspect.js')).inspect,
  },
  {
    name: 'convert',
    summary: 'a save as a model directory or as adapters, and back',
    load: async () => (await import('./convert.js')).convert,
  },
  {
    name: 'merge',
    summary: 'add adapters into the model that they were trained beside',
    load: async () => (await import('./merge.js')).merge,
  },
  {
    name: 'gguf',
    summary: 'write a model as the file that llama.cpp runs',
    load: async () => (await import('./gguf.js')).gguf,
  },
  {
    name: 'onnx',
    summary: 'write a text encoder as the folder that transformers.js loads',
    load: async () => (await import('./onnx.js')).onnx,
  },
  {
    name: 'push',
    summary: 'upload what a run has left to the Hugging Face Hub, with a card',
    load: async () => (await import('./push.js')).push,
  },
  {
    name: 'doctor',
    summary: 'what this machine offers, and what is missing',
    load: async () => (await import('./doctor.js')).doctor,
  },
];
