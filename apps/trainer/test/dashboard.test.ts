// These tests check the dashboard's server: who gets which data during and after a run, and what
// Prometheus reads.

import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import { request } from 'node:http';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import type { CommandContext } from '../src/commands/cli-command.js';
import { report } from '../src/commands/report.js';
import { resolveConfig } from '../src/config/resolve-config.js';
import { Dashboard } from '../src/dashboard/dashboard.js';
import { PrometheusText } from '../src/dashboard/prometheus.js';
import { TOKEN_VARIABLE } from '../src/dashboard/token.js';
import { UsageError } from '../src/errors.js';
import { reportOf } from '../src/output/report.js';
import { RunDirectory } from '../src/output/run-directory.js';
import { RunHistory } from '../src/output/run-history.js';
import type { EventRecord, RunRecord, StepLine } from '../src/output/run-records.js';
import { packSteps, unpackSteps } from '../src/page/run/step-table.js';
import { parseFlags } from './support/parse-flags.js';

const TOKEN = 'a-token-that-the-test-has-made';

const run: EventRecord = { type: 'run', title: 'a "run"\\', steps: 9, ranks: 1, atMs: 5 };
/** A rank's device, of which the page shows nothing here. */
const ABOUT = {
  ...{ description: '', isSoftware: true, host: 'here' },
  ...{ numericClass: '', shardBytes: 4 },
} as const;
const step = (n: number, over = {}): RunRecord => ({
  type: 'step',
  step: n,
  loss: 3.5,
  targets: 64,
  gradNorm: 0.25,
  lr: 1e-3,
  lossScale: 1,
  skipped: false,
  stepMs: 250,
  tokensPerSecond: 256,
  atMs: 1000 * n,
  ...over,
});
const NONE = { parameter: 0, gathered: 0, gradient: 0, optimizer: 0, activation: 0, staging: 0 };
const rank = (n: number): RunRecord => ({
  type: 'rank',
  rank: 0,
  step: n,
  phases: [{ phase: 'forward', bytes: { ...NONE, parameter: 512, total: 512 } }],
  bytesSent: 100,
  bytesReceived: 50,
  collectiveMs: 20,
  exposedMs: 5,
  atMs: 1000 * n,
});

let dashboard: Dashboard | undefined;
afterEach(async () => {
  vi.useRealTimers();
  await dashboard?.close();
  dashboard = undefined;
});

async function open(history = new RunHistory()): Promise<URL> {
  dashboard = await Dashboard.open({ port: 0, history, env: { [TOKEN_VARIABLE]: TOKEN } });
  return new URL(dashboard.url);
}

interface Answer {
  readonly status: number;
  readonly text: string;
  readonly headers: NodeJS.Dict<string | string[]>;
}

/** Requests a path. `enough` ends an answer that would otherwise go on. */
function ask(
  url: URL,
  path: string,
  options: {
    readonly method?: string;
    readonly headers?: Record<string, string>;
    readonly enough?: (text: string) => boolean;
  } = {},
): Promise<Answer> {
  const { method = 'GET', headers = {}, enough = () => false } = options;
  return new Promise((resolve, reject) => {
    const { hostname: host, port } = url;
    const asked = request({ host, port, path, method, headers, agent: false }, (response) => {
      let text = '';
      const { statusCode: status = 0, headers: given } = response;
      const end = () => resolve({ status, text, headers: given });
      response.setEncoding('utf8').on('data', (piece: string) => {
        text += piece;
        if (enough(text)) {
          end();
          asked.destroy();
        }
      });
      response.on('end', end).on('error', () => {});
    });
    asked.on('error', reject).end();
  });
}

const bearer = (token = TOKEN) => ({ Authorization: `Bearer ${token}` });

describe('what the dashboard answers', () => {
  it('has the token in the fragment of its address, and nothing of the run in its page', async () => {
    const history = new RunHistory();
    history.add(run);
    const url = await open(history);
    expect(url.hash).toBe(`#token=${TOKEN}`);
    expect(url.hostname).toBe('127.0.0.1');
    const { status, text, headers } = await ask(url, '/');
    expect(status).toBe(200);
    expect(text).toContain('<script id="data" type="application/json">null</script>');
    expect(text).not.toContain(TOKEN);
    expect(headers['content-security-policy']).toBe("frame-ancestors 'none'");
    expect(headers['cache-control']).toBe('no-store');
    expect((await ask(url, '/other', { headers: bearer() })).status).toBe(404);
  });

  it('tells everything so far, of each rank its last word, and then what comes', async () => {
    const history = new RunHistory();
    for (const record of [run, step(1), rank(1), step(2), rank(2)]) {
      history.add(record);
    }
    const url = await open(history);
    const answer = ask(url, '/events', {
      headers: bearer(),
      enough: (text) => {
        if (!text.includes('event: record')) {
          dashboard!.send(step(3, { validLoss: 2 }));
        }
        return text.includes('event: record');
      },
    });
    const [first, second] = (await answer).text.split('\n\n').map((message) => {
      const [, name, data] = /^event: (\w+)\ndata: (.*)$/.exec(message) ?? [];
      return { name, data: data === undefined ? undefined : JSON.parse(data) };
    });
    expect(first!.name).toBe('history');
    expect(first!.data.slice(1)).toEqual([run, rank(2)]);
    expect(unpackSteps(first!.data[0])).toEqual(
      [step(1), step(2)].map(({ type: _, ...line }) => line),
    );
    expect(second).toEqual({ name: 'record', data: step(3, { validLoss: 2 }) });
  });

  it('lets the last words through when the command ends', async () => {
    const url = await open();
    let answer: Promise<Answer> | undefined;
    await new Promise<void>((resolve) => {
      const enough = () => {
        resolve();
        return false;
      };
      answer = ask(url, '/events', { headers: bearer(), enough });
    });
    dashboard!.send({ type: 'runEnd', end: 'done', atMs: 9 });
    await dashboard!.close();
    expect((await answer!).text).toContain('"runEnd"');
    await expect(ask(url, '/')).rejects.toThrow('ECONNREFUSED');
  });
});

describe('who gets nothing', () => {
  const cases: readonly [string, number, Record<string, string>, method?: string][] = [
    ['no token', 401, {}],
    ['another token', 401, bearer('a-token-that-somebody-guesses')],
    ['a token that begins alike', 401, bearer(TOKEN.slice(0, -1))],
    ['a token of another kind', 401, { Authorization: `Basic ${TOKEN}` }],
    ['another page with the token', 403, { ...bearer(), Origin: 'http://127.0.0.1:1' }],
    ['another site with the token', 403, { ...bearer(), Origin: 'https://example.org' }],
    ['a page without a name', 403, { ...bearer(), Origin: 'null' }],
    ['a name that leads here', 403, { ...bearer(), Host: 'example.org' }],
    ['a name that begins alike', 403, { ...bearer(), Host: 'localhost.example.org' }],
    ['a name with the port of ours', 403, { ...bearer(), Host: 'example.org:8642' }],
    ['whoever wants to change something', 405, bearer(), 'POST'],
  ];
  it.each(cases)('%s', async (_, status, headers, method = 'GET') => {
    const history = new RunHistory();
    history.add(run);
    const url = await open(history);
    for (const path of ['/events', '/metrics']) {
      const answer = await ask(url, path, { headers, method });
      expect(answer.status).toBe(status);
      expect(answer.text).toMatch(/^expected [^"{]*\n$/);
      expect(answer.headers['access-control-allow-origin']).toBeUndefined();
    }
  });

  it('whoever comes by another name gets nothing of the page itself', async () => {
    const url = await open();
    expect((await ask(url, '/', { headers: { Host: 'example.org' } })).status).toBe(403);
    expect((await ask(url, '/', { headers: { Host: 'localhost:9000' } })).status).toBe(200);
  });

  it('the page itself goes through a tunnel, whose port is another', async () => {
    const url = await open();
    const headers = { ...bearer(), Host: 'localhost:9000', Origin: 'http://localhost:9000' };
    expect((await ask(url, '/metrics', { headers })).status).toBe(200);
  });
});

describe('a stranger', () => {
  const dial = async (url: URL): Promise<Socket> => {
    const socket = connect(Number(url.port), '127.0.0.1').on('error', () => {});
    await once(socket, 'connect');
    return socket;
  };
  /** Says something. Resolves with all that is said when the dashboard has ended the connection. */
  const say = async (url: URL, text: string): Promise<string> => {
    const socket = await dial(url);
    let heard = '';
    socket.setEncoding('latin1').on('data', (piece: string) => (heard += piece));
    socket.write(text);
    await once(socket, 'close');
    return heard;
  };
  const get = (target: string, more = '') =>
    `GET ${target} HTTP/1.1\r\nHost: localhost\r\n${more}\r\n`;

  it('is refused by the gate, whatever it is asked for, and the run goes on', async () => {
    const url = await open();
    for (const target of ['//', 'http://[', '*', 'http://', '/%', '/\\', '?']) {
      expect(await say(url, get(target)), target).toMatch(/^HTTP\/1.1 401 /);
    }
    for (const text of [
      '\r\n\r\n',
      'GET /\r\n\r\n',
      get('/', 'Host: evil\r\n'),
      'x'.repeat(20_000),
    ]) {
      expect(await say(url, text)).toMatch(/^HTTP\/1.1 400 /);
    }
    const authorization = `Authorization: Bearer ${TOKEN}\r\n`;
    for (const target of ['//', 'http://[', '*']) {
      expect(await say(url, get(target, authorization)), target).toMatch(/^HTTP\/1.1 404 /);
    }
    expect((await ask(url, '/?a=b')).status).toBe(200);
  });

  it('gets one answer a connection, however many requests it sends', async () => {
    const url = await open();
    const answers = await say(url, get('/metrics').repeat(5000));
    expect(answers.split('HTTP/1.1 401').length - 1).toBeLessThanOrEqual(1);
    expect((await ask(url, '/')).status).toBe(200);
  });

  const closed = async (sockets: readonly Socket[]) => {
    await Promise.all(sockets.map((socket) => socket.closed || once(socket, 'close')));
  };

  it('strangers who say nothing keep nobody out: the oldest go, and in time all', async () => {
    const url = await open();
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    const idle: Socket[] = [];
    for (let i = 0; i < 100; i++) {
      idle.push(await dial(url));
    }
    await closed(idle.slice(0, 36));
    const last = idle.at(-1)!;
    const answered = once(last, 'data');
    last.write(get('/'));
    await answered; // It had not to go.
    vi.advanceTimersByTime(30_000);
    await closed(idle);
    vi.useRealTimers();
    expect((await ask(url, '/')).status).toBe(200);
  });

  it('a stranger with the token is one of sixteen readers: the oldest go', async () => {
    const url = await open();
    const readers: Socket[] = [];
    for (let i = 0; i < 18; i++) {
      const reader = await dial(url);
      readers.push(reader);
      reader.write(get('/events', `Authorization: Bearer ${TOKEN}\r\n`));
      await once(reader, 'data');
      reader.resume();
    }
    await closed(readers.slice(0, 2));
    expect(readers.map((reader) => reader.destroyed).indexOf(false)).toBe(2);
  });

  it('a reader with the token that reads nothing is cut off, and the others hear on', async () => {
    const url = await open();
    const slow = await dial(url);
    slow.write(get('/events', `Authorization: Bearer ${TOKEN}\r\n`));
    await once(slow, 'data');
    slow.pause();
    const text = 'x'.repeat(4 * 2 ** 20);
    const gone = once(slow, 'close');
    const sample: RunRecord = { type: 'sample', step: 1, prompt: '', text };
    for (let i = 0; i < 16; i++) {
      dashboard!.send(sample);
      await new Promise((resolve) => setImmediate(resolve));
    }
    slow.resume();
    await gone;
    expect(slow.bytesRead).toBeLessThan(16 * text.length);
    expect((await ask(url, '/')).status).toBe(200);
  });
});

describe('the flag --dashboard', () => {
  const portOf = async (line: string) =>
    (await resolveConfig(parseFlags(line.split(' ').filter(Boolean), () => {}))).dashboard;

  it('takes a port or none', async () => {
    expect(await portOf('')).toBeUndefined();
    expect(await portOf('--dashboard --ranks 1')).toBe(true);
    expect(await portOf('--dashboard 7000')).toBe(7000);
    await expect(portOf('--dashboard 70000')).rejects.toThrow(
      '--dashboard: expected a port up to 65535, or none, got "70000". See --help.',
    );
  });

  it('refuses a port that is taken, and a token that is short', async () => {
    const { port } = await open();
    const history = new RunHistory();
    const again = Dashboard.open({ port: Number(port), history, env: {} });
    await expect(again).rejects.toThrow(
      `--dashboard: port ${port} can't be used (address already in use). Give another one`,
    );
    const env = { [TOKEN_VARIABLE]: 'secret' };
    await expect(Dashboard.open({ port: 0, history, env })).rejects.toThrow(UsageError);
  });

  it('makes another token each time', async () => {
    const history = new RunHistory();
    const [a, b] = await Promise.all(
      [0, 1].map(() => Dashboard.open({ port: 0, history, env: {} })),
    );
    const [first, second] = [a!, b!].map(({ url }) => new URL(url).hash);
    expect(first).toMatch(/^#token=[\w-]{32}$/);
    expect(second).not.toBe(first);
    await Promise.all([a!.close(), b!.close()]);
  });
});

describe('what Prometheus reads', () => {
  const LINE = /^(shardweave_[a-z_]+)(\{(?:[a-z]+="(?:[^"\\\n]|\\[\\"n])*",?)*\})? (\S+)$/;

  /** Parses the text format strictly by its specification, so that any scraper can read it. */
  function parse(text: string): Map<string, number> {
    expect(text.endsWith('\n')).toBe(true);
    const values = new Map<string, number>();
    let family: string | undefined;
    const lines = text.slice(0, -1).split('\n');
    for (const [i, line] of lines.entries()) {
      const [, helped] = /^# HELP (\S+) \S.*$/.exec(line) ?? [];
      if (helped !== undefined) {
        expect(lines[i + 1]).toMatch(new RegExp(`^# TYPE ${helped} (gauge|counter)$`));
        expect(lines[i + 1]!.endsWith('counter')).toBe(helped.endsWith('_total'));
        family = helped;
        continue;
      }
      if (line.startsWith('# TYPE')) {
        continue;
      }
      const [, name, labels = '', value] = LINE.exec(line) ?? expect.fail(`no sample: ${line}`);
      expect(name).toBe(family);
      expect(value).toMatch(/^(NaN|[+-]Inf|[\d.e+-]+)$/);
      expect(values.has(`${name}${labels}`)).toBe(false);
      values.set(`${name}${labels}`, Number(value));
    }
    return values;
  }

  it('is the text format, with help and type before each name and counters that add up', async () => {
    const url = await open();
    const records: RunRecord[] = [
      run,
      { type: 'ready', rank: 0, device: 'cpu', ...ABOUT },
      step(1, { validLoss: 2 }),
      rank(1),
      step(2, { loss: null, gradNorm: null, skipped: true }),
      rank(2),
      { type: 'save', step: 2, directory: 'x', bytes: 9, ms: 5, waitMs: 1, atMs: 7 },
      { type: 'rankEnd', rank: 0, end: 'killed', reason: 'SIGKILL', atMs: 9 },
    ];
    for (const record of records) {
      dashboard!.send(record);
    }
    const { text, headers } = await ask(url, '/metrics', { headers: bearer() });
    expect(headers['content-type']).toBe('text/plain; version=0.0.4; charset=utf-8');
    const values = parse(text);
    expect(values.get('shardweave_run_info{title="a \\"run\\"\\\\"}')).toBe(1);
    expect(values.get('shardweave_steps_total')).toBe(2);
    expect(values.get('shardweave_target_tokens_total')).toBe(128);
    expect(values.get('shardweave_loss')).toBeNaN();
    expect(values.get('shardweave_validation_loss')).toBe(2);
    expect(values.get('shardweave_step_seconds')).toBe(0.25);
    expect(values.get('shardweave_skipped_steps_total{reason="overflow"}')).toBe(1);
    expect(values.get('shardweave_rank_sent_bytes_total{rank="0"}')).toBe(200);
    expect(values.get('shardweave_rank_exposed_collective_seconds_total{rank="0"}')).toBe(0.01);
    const parameters = 'shardweave_rank_memory_bytes{rank="0",phase="forward",tag="parameter"}';
    expect(values.get(parameters)).toBe(512);
    expect(values.get('shardweave_rank_state{rank="0",state="killed"}')).toBe(1);
    expect(values.get('shardweave_rank_state{rank="0",state="training"}')).toBe(0);
    expect(values.get('shardweave_last_save_step')).toBe(2);
  });

  it('counts what this command has done, while the page is told of earlier steps too', async () => {
    const url = await open();
    dashboard!.tell(step(1));
    dashboard!.send(step(2));
    const { text } = await ask(url, '/metrics', { headers: bearer() });
    expect(parse(text).get('shardweave_steps_total')).toBe(1);
  });

  it('has no family without a value', () => {
    expect(new PrometheusText().text()).toBe('\n');
  });
});

describe('a report', () => {
  function written(records: readonly RunRecord[]): string {
    const path = join(newFolder(), 'run');
    const directory = new RunDirectory(path);
    for (const record of records) {
      directory.add(record);
    }
    directory.close();
    return path;
  }
  const dataOf = (html: string) =>
    JSON.parse(/<script id="data" type="application\/json">(.*)<\/script>/.exec(html)![1]!);

  it('has the records of its runs inside, and no text of theirs as markup', async () => {
    const evil: EventRecord = {
      type: 'sample',
      step: 1,
      prompt: '',
      text: '</script><script>alert(1)</script><!--',
    };
    const path = written([run, step(1), evil, step(2)]);
    const html = await reportOf([path]);
    const { runs } = dataOf(html);
    const lines = [step(1), step(2)].map(({ type: _, ...line }) => line as StepLine);
    expect(runs).toEqual([
      { name: 'run', state: 'killed', isLive: false, records: packSteps([run, evil], lines) },
    ]);
    expect(html).not.toContain('alert(1)</script>');
    // The page has nothing that a browser would fetch.
    expect(html).not.toMatch(/(src|href)="(?!data:)/);
    expect(html).not.toMatch(/@import|url\(/);
  });

  it('takes what a run that was killed has left, and names what is no run', async () => {
    const path = written([run, step(1)]);
    const metrics = join(path, 'metrics.jsonl');
    const whole = readFileSync(metrics, 'utf8');
    expect(unpackSteps(dataOf(await reportOf([path])).runs[0].records[0])).toHaveLength(1);
    writeFileSync(metrics, `${whole}{"step":2,"lo`);
    expect(unpackSteps(dataOf(await reportOf([path])).runs[0].records[0])).toHaveLength(1);
    writeFileSync(metrics, `nonsense\n${whole}`);
    await expect(reportOf([path])).rejects.toThrow(/metrics\.jsonl: line 1 is no JSON/);
    await expect(reportOf([tmpdir()])).rejects.toThrow(
      /holds no run \(metrics\.jsonl is missing\)/,
    );
  });

  it('is what the command writes, of runs whose names are given beside its flags', async () => {
    const paths = [written([run, step(1)]), written([run, step(1)])];
    const out = join(newFolder(), 'both.html');
    let said = '';
    const stream = { write: (text: string) => (said += text) };
    const context = { args: ['report', ...paths, '--out', out], out: stream };
    expect(await report.run(context as unknown as CommandContext)).toBe(0);
    expect(said).toBe(`${out}: 2 runs\n`);
    expect(dataOf(readFileSync(out, 'utf8')).runs).toHaveLength(2);
    expect(() => report.parse([], () => {})).toThrow(/missing required argument 'RUN'/);
  });

  it('tells runs of equal names apart', async () => {
    const paths = [written([run, step(1)]), written([run, step(1)])];
    const { runs } = dataOf(await reportOf(paths));
    expect(runs.map(({ name }: { name: string }) => name)).toEqual(paths);
  });
});
