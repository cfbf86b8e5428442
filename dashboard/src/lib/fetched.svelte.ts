// An answer that is asked for again when what it depends on changes; the old one stays until the new one is here.
import { app } from "./state.svelte";

export class Fetched<T> {
  value = $state.raw<T | undefined>(undefined);

  // `request` reads what it depends on before its first await. Answers that come late, after a newer one, are dropped.
  constructor(request: () => Promise<T> | undefined) {
    let turn = 0;
    let last = 0;
    $effect(() => {
      void app.tick;
      const mine = ++turn;
      const pending = request();
      if (!pending) {
        this.value = undefined;
        return;
      }
      pending.then(
        (value) => {
          if (mine < last) return;
          last = mine;
          this.value = value;
          app.failure = "";
        },
        (error: unknown) => {
          if (mine === turn) app.failure = error instanceof Error ? error.message : String(error);
        },
      );
    });
  }
}
