// One contender with its ranks, wherever they run. It starts them, passes on what they exchange
// while they join, sends each request to all of them at once, and ends what it started.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import net from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const HERE = fileURLToPath(new URL('.', import.meta.url));
const PYTHON = '/usr/bin/python3'; // Debian's Python, which finds Debian's packages
/**
 * A rank that has not joined by then will not come, and one that is silent for longer in a call
 * will not answer.
 */
const JOIN_MS = 40_000;
const CALL_MS = 60_000;

// mpirun refuses to run as root (in a container) and with more ranks than cores unless it is told
// to.
const MPIRUN = ['--allow-run-as-root', '--oversubscribe', '--bind-to', 'none'];

export class Job {
  #contender;
  #worldSize;
  #children = [];
  #sockets = new Map();
  #waiting = new Map();
  #exchanges = [];
  #lastId = 0;
  #stderr = '';
  #isClosing = false;
  #fail;
  #failed;
  #server;

  /** Starts a contender. Throws an Error with half a sentence where it cannot run here. */
  static async start(contender, worldSize, job) {
    const started = new Job(contender, worldSize);
    try {
      await started.#start(job);
      return started;
    } catch (error) {
      started.#end();
      throw error;
    }
  }

  constructor(contender, worldSize) {
    this.#contender = contender;
    this.#worldSize = worldSize;
    this.#failed = new Promise((_, reject) => {
      this.#fail = reject;
    });
    this.#failed.catch(() => {});
  }

  get name() {
    return this.#contender.name;
  }

  /**
   * Asks all ranks and returns their answers in rank order. Throws where one fails; after a silence
   * the job is over.
   */
  async ask(request, limitMs = CALL_MS) {
    const id = ++this.#lastId;
    const answers = this.#answers(id);
    for (const socket of this.#sockets.values()) {
      socket.write(`${JSON.stringify({ id, ...request })}\n`);
    }
    const all = await this.#within(answers, limitMs, `silent for ${limitMs / 1000} s`);
    const failed = all.find(({ error }) => error !== undefined);
    if (failed !== undefined) {
      throw new Error(failed.error);
    }
    return all;
  }

  async close() {
    this.#isClosing = true;
    await this.ask({ do: 'close' }, 5000).catch(() => {});
    const gone = this.#children.map((child) => child.exitCode ?? once(child, 'close'));
    await Promise.race([Promise.all(gone), new Promise((resolve) => setTimeout(resolve, 3000))]);
    this.#end();
  }

  get hasEnded() {
    return this.#isClosing;
  }

  async #start(job) {
    const control = join(job.folder, `${this.name.replace(/\W/g, '-')}-${this.#worldSize}.sock`);
    this.#server = net.createServer((socket) => this.#onSocket(socket)).listen(control);
    const ready = this.#answers('ready');
    const { adapter, python, ranksAre, engine, connect, bundle, folder } = this.#contender;
    const spec = {
      control,
      adapter,
      ranksAre,
      worldSize: this.#worldSize,
      job: { ...job, engine, connect, bundle },
    };
    const script = python
      ? [join(HERE, 'rivals', python)]
      : ['--expose-gc', ...job.nodeArgs, join(folder ?? HERE, 'start-ranks.mjs')];
    const command = (ranks) => [
      python ? PYTHON : process.execPath,
      ...script,
      JSON.stringify({ ...spec, ranks }),
    ];
    const all = Array.from({ length: this.#worldSize }, (_, rank) => rank);
    if (ranksAre === 'mpirun') {
      this.#spawn(['mpirun', ...MPIRUN, '-np', `${this.#worldSize}`, ...command(undefined)]);
    } else if (ranksAre === 'processes') {
      for (const rank of all) {
        this.#spawn(command([rank]));
      }
    } else {
      this.#spawn(command(all));
    }
    const names = await this.#within(ready, JOIN_MS, `not complete after ${JOIN_MS / 1000} s`);
    this.version = names[0].ready;
  }

  #spawn([file, ...args]) {
    const child = spawn(file, args, {
      cwd: HERE,
      stdio: ['ignore', 'ignore', 'pipe'],
      // Threads that wait by spinning would take the cores from the other contenders.
      env: { ...process.env, OMP_WAIT_POLICY: 'PASSIVE', GLOO_SOCKET_IFNAME: 'lo' },
    });
    child.stderr.on('data', (chunk) => {
      this.#stderr = (this.#stderr + chunk).slice(-4000);
    });
    child.on('error', (error) => this.#fail(new Error(`${file}: ${error.code ?? error.message}`)));
    child.on('close', (code, signal) => {
      if (!this.#isClosing) {
        this.#fail(new Error(this.#reason(code ?? signal)));
        this.#end();
      }
    });
    this.#children.push(child);
  }

  #reason(code) {
    const lines = this.#stderr.trim().split('\n');
    const error = lines.find((line) => /^\s*(Uncaught )?\w*Error\b.*:/.test(line)) ?? lines.at(-1);
    return `a rank ended with ${code}${error === '' ? '' : `: ${error}`}`;
  }

  #onSocket(socket) {
    const lines = createInterface({ input: socket });
    lines.on('error', () => {}); // the end of its process is noticed anyway
    lines.on('line', (line) => {
      const message = JSON.parse(line);
      if (message.hello) {
        this.#sockets.set(message.rank, socket);
      } else if (message.exchange !== undefined) {
        this.#onExchange(message);
      } else {
        this.#onAnswer(message.ready === undefined ? message.id : 'ready', message);
      }
    });
  }

  #onExchange({ rank, exchange }) {
    let round = this.#exchanges.find((values) => !values.has(rank));
    if (round === undefined) {
      round = new Map();
      this.#exchanges.push(round);
    }
    round.set(rank, exchange);
    if (round.size < this.#worldSize) {
      return;
    }
    this.#exchanges.splice(this.#exchanges.indexOf(round), 1);
    const exchanged = Array.from({ length: this.#worldSize }, (_, r) => round.get(r));
    for (const socket of this.#sockets.values()) {
      socket.write(`${JSON.stringify({ exchanged })}\n`);
    }
  }

  #answers(id) {
    return new Promise((resolve) => this.#waiting.set(id, { messages: [], resolve }));
  }

  #onAnswer(id, message) {
    const { messages, resolve } = this.#waiting.get(id);
    messages.push(message);
    if (messages.length === this.#worldSize) {
      this.#waiting.delete(id);
      resolve(messages.sort((a, b) => a.rank - b.rank));
    }
  }

  async #within(promise, ms, reason) {
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => {
        this.#end();
        reject(new Error(reason));
      }, ms);
    });
    try {
      return await Promise.race([promise, this.#failed, late]);
    } finally {
      clearTimeout(timer);
    }
  }

  #end() {
    this.#isClosing = true;
    this.#server.close();
    // mpirun ends its ranks when it is told to end. Other ranks end when their control socket
    // closes.
    const signal = this.#contender.ranksAre === 'mpirun' ? 'SIGTERM' : 'SIGKILL';
    for (const child of this.#children) {
      child.kill(signal);
    }
    for (const socket of this.#sockets.values()) {
      socket.destroy();
    }
  }
}
