// Starts the page: of runs whose records are in the page itself, of a run that its command reports
// live, or of all runs under a folder, which the first message of the command tells.

import type { PageData, RunsMessages } from './run/page-data.js';
import { RunModel, runOf } from './run/run-model.js';
import type { PageRecord } from './run/step-table.js';
import { RunPage } from './run-page.js';
import { RunsView } from './runs-view.js';
import { followEvents, type StreamState } from './stream.js';

const MESSAGES: Readonly<Record<StreamState, string>> = {
  open: '',
  lost: 'The command does not answer. What is shown is what it told last; it is asked again.',
  refused:
    'The command does not know this page. Open the whole address that it printed, with what stands behind the #.',
};

function start(): void {
  const data = JSON.parse(document.querySelector('#data')!.textContent!) as PageData | null;
  if (data === null) {
    startLive();
  } else {
    new RunPage(data.runs.map(runOf), { isLive: false }).draw();
  }
}

function startLive(): void {
  window.addEventListener('hashchange', () => location.reload());
  const asked = new URLSearchParams(location.hash.slice(1));
  const token = asked.get('token') ?? '';
  const alone = asked.get('run') ?? undefined;
  const chosen = alone === undefined ? (asked.get('runs')?.split(',') ?? []) : [alone];
  const run = new LiveRun();
  let all: RunsView | undefined;
  let connection = new AbortController();
  const follow = (ids: readonly string[]) => {
    connection.abort();
    connection = new AbortController();
    void followEvents({
      token,
      query: new URLSearchParams({ runs: ids.join() }).toString(),
      signal: connection.signal,
      onMessage: (name, data) => {
        if (name === 'history' || name === 'record') {
          run.hear(name, data);
          return;
        }
        all ??= new RunsView({ token, alone, chosen, onChosen: follow });
        all.hear(name as keyof RunsMessages, data);
      },
      onState: (state) => (all ?? run).say(MESSAGES[state]),
      isOver: () => run.isOver,
    });
  };
  follow(chosen);
}

/** The page of one run that its command reports. */
class LiveRun {
  #page = new RunPage([new RunModel('run')], { isLive: true });

  /** Whether the run has ended, after which its command tells nothing more. */
  get isOver(): boolean {
    return this.#page.runs[0]!.end !== undefined;
  }

  hear(name: 'history' | 'record', data: unknown): void {
    if (name === 'history') {
      this.#page.dispose();
      this.#page = new RunPage([runOf({ name: 'run', records: data as PageRecord[] })], {
        isLive: true,
      });
      this.#page.draw();
    } else {
      this.#page.runs[0]!.add(data as PageRecord);
      this.#page.drawSoon();
    }
    if (this.isOver) {
      this.#page.sayEnd();
    }
  }

  say(text: string): void {
    if (!this.isOver) {
      this.#page.say(text);
    }
  }
}

start();
