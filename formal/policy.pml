/* How members change plans (src/gradwire/plan/membership/member.py), small enough to check every interleaving.
 *
 * Three members do STEPS steps. Member 0 may propose plan 2 and member 1 plan 3, at any time. Control messages
 * may be lost, late, duplicated or reordered: receiving one is a choice below that may be taken at any later time, or never.
 * Member 0 may die at any time; then member 1 leads the regroup to a new epoch with member 2.
 * A collective is reduced to this: a step ends for a member when all have begun it, and its end merges their votes.
 * The states of a member are those of MemberState (src/gradwire/plan/membership/member_state.py).
 *
 * Checked: no step runs under two plans, survivors agree on every step and lose none, nobody waits for ever (spin's
 * invalid end states: every step ends even if all control messages are lost).
 * -DTRUST_COMMIT omits the vote and trusts the commit message: spin must then find a step that mixes plans.
 * -DFORGET_PROMISE lets a member end old steps after it answered the regroup: spin must find survivors that disagree.
 */
#define N 3
#define STEPS 4
#define LEAD 2

byte ver[N];            /* plan in use */
byte done[N];           /* steps done */
byte epoch[N];
bool alive[N];

/* RUNNING: steps begin and end. PROMISED: has answered the regroup, the new epoch is not installed.
   BEHIND: has installed it, but lacks the last result. */
mtype = { RUNNING, PROMISED, BEHIND };
mtype state[N];
#define CHANGE(m, from, to) assert(state[m] == from); state[m] = to

bool holds1[N]; bool holds2[N];             /* has the plan of proposer 0 / 1 */
byte sent1; byte sent2;                     /* latest commit: the step to activate at; 0: none yet */
byte com1[N]; byte com2[N];                 /* the commit a member knows */

/* A begun step: epoch, version, vote; by member * STEPS + step. 0: not begun. */
byte began[12]; byte bver[12]; byte bvote[12];
/* A done step: epoch and version + 1 as one number; 0: not done. */
byte log[12];

byte install_step; byte install_holder; bool install_sent;
byte reported[N];       /* steps done, as reported to the leader; 255: not reported */

#define AT(m, s) ((m) * STEPS + (s))
#define STOPPED(m) (state[m] != RUNNING)

inline begin_step(m) {
    atomic {
        (alive[m] && !STOPPED(m) && done[m] < STEPS && (began[AT(m, done[m])] == 0 || began[AT(m, done[m])] != epoch[m] + 1)) ->
        began[AT(m, done[m])] = epoch[m] + 1;
#ifdef TRUST_COMMIT
        if
        :: com1[m] != 0 && com1[m] <= done[m] && ver[m] < 2 -> ver[m] = 2
        :: com2[m] != 0 && com2[m] <= done[m] && ver[m] < 3 -> ver[m] = 3
        :: else -> skip
        fi;
#endif
        bver[AT(m, done[m])] = ver[m];
        if
        :: com2[m] == done[m] + 1 && ver[m] < 3 -> bvote[AT(m, done[m])] = 3
        :: com2[m] != done[m] + 1 && com1[m] == done[m] + 1 && ver[m] < 2 -> bvote[AT(m, done[m])] = 2
        :: else -> bvote[AT(m, done[m])] = 0
        fi
    }
}

/* Everybody of m's epoch has begun m's step in that epoch. */
#define IN(o, m) (began[AT(o, done[m])] == epoch[m] + 1)
#define ALL_IN(m) (IN(m, m) && IN(1, m) && IN(2, m) && (epoch[m] != 0 || IN(0, m)))
#define VOTE(o, m) bvote[AT(o, done[m])]
#define AGREED(m) (VOTE(1, m) != 0 && VOTE(1, m) == VOTE(2, m) && (epoch[m] != 0 || VOTE(0, m) == VOTE(1, m)))
#ifdef FORGET_PROMISE
#define MAY_END(m) (state[m] != BEHIND)
#else
#define MAY_END(m) (!STOPPED(m))
#endif

inline end_step(m) {
    atomic {
        (alive[m] && MAY_END(m) && done[m] < STEPS && ALL_IN(m)) ->
        assert(bver[AT(1, done[m])] == bver[AT(m, done[m])]);
        assert(bver[AT(2, done[m])] == bver[AT(m, done[m])]);
        assert(epoch[m] != 0 || bver[AT(0, done[m])] == bver[AT(m, done[m])]);
        log[AT(m, done[m])] = epoch[m] * 16 + bver[AT(m, done[m])] + 1;
#ifndef TRUST_COMMIT
        if
        :: (AGREED(m)) ->
            ver[m] = bvote[AT(1, done[m])];
            assert(ver[m] != 2 || holds1[m]);
            assert(ver[m] != 3 || holds2[m])
        :: else -> skip
        fi;
#endif
        /* Survivors agree on every step both have done. */
        assert(log[AT(1, done[m])] == 0 || log[AT(2, done[m])] == 0 || log[AT(1, done[m])] == log[AT(2, done[m])]);
        done[m] = done[m] + 1
    }
}

proctype member(byte me) {
end:
    do
    :: begin_step(me)
    :: end_step(me)
    /* Announcements and commits arrive at any later time or never; stale ones are recognised by their version. */
    :: atomic { alive[me] && epoch[me] == 0 && alive[0] && !holds1[me] && ver[me] < 2 -> holds1[me] = true }
    :: atomic { alive[me] && epoch[me] == 0 && !holds2[me] && ver[me] < 3 -> holds2[me] = true }
    :: atomic { alive[me] && epoch[me] == 0 && holds1[me] && sent1 != 0 && com1[me] != sent1 -> com1[me] = sent1 }
    :: atomic { alive[me] && epoch[me] == 0 && holds2[me] && sent2 != 0 && com2[me] != sent2 -> com2[me] = sent2 }
    /* Answer the regroup; install the new epoch; receive the missing result. */
    :: atomic { alive[me] && !alive[0] && epoch[me] == 0 && state[me] == RUNNING && (me == 1 || state[1] == PROMISED) ->
        CHANGE(me, RUNNING, PROMISED); reported[me] = done[me] }
    :: atomic { alive[me] && state[me] == PROMISED && install_sent ->
        epoch[me] = 1; ver[me] = 4; com1[me] = 0; com2[me] = 0;
        if
        :: done[me] < install_step -> CHANGE(me, PROMISED, BEHIND)
        :: else -> CHANGE(me, PROMISED, RUNNING)
        fi }
    :: atomic { alive[me] && state[me] == BEHIND ->
        assert(log[AT(install_holder, done[me])] != 0);
        log[AT(me, done[me])] = log[AT(install_holder, done[me])];
        done[me] = done[me] + 1;
        assert(done[me] == install_step);
        CHANGE(me, BEHIND, RUNNING) }
    od
}

/* The two proposers: when all members have the plan, a commit is sent, maybe again later. */
proctype proposers() {
end:
    do
    :: atomic { alive[0] && epoch[0] == 0 && holds1[0] && sent1 == 0 && holds1[1] && holds1[2] && done[0] < STEPS ->
        sent1 = done[0] + LEAD }
    :: atomic { alive[0] && sent1 != 0 && sent1 <= done[0] && ver[0] < 2 && done[0] + LEAD < STEPS -> sent1 = done[0] + LEAD }
    :: atomic { epoch[1] == 0 && sent2 == 0 && holds2[0] && holds2[1] && holds2[2] && done[1] < STEPS ->
        sent2 = done[1] + LEAD }
    :: atomic { epoch[1] == 0 && sent2 != 0 && sent2 <= done[1] && ver[1] < 3 && done[1] + LEAD < STEPS -> sent2 = done[1] + LEAD }
    od
}

/* Member 0 dies at some time, or never. */
proctype fate() {
    if
    :: alive[0] = false
    :: skip
    fi
}

/* Member 1 concludes when both survivors have answered. */
proctype leader() {
end:
    atomic {
        reported[1] != 255 && reported[2] != 255 ->
        /* Nobody ends a step that another has not begun, so survivors are at most one step apart. */
        assert(reported[1] <= reported[2] + 1 && reported[2] <= reported[1] + 1);
        if
        :: reported[1] >= reported[2] -> install_step = reported[1]; install_holder = 1
        :: else -> install_step = reported[2]; install_holder = 2
        fi;
        install_sent = true
    }
}

/* When nothing more can happen, everybody alive has done everything. */
proctype watch() {
    timeout -> assert(done[1] == STEPS && done[2] == STEPS && (!alive[0] || done[0] == STEPS))
}

init {
    atomic {
        byte m = 0;
        do
        :: m < N -> ver[m] = 1; alive[m] = true; state[m] = RUNNING; reported[m] = 255; m++
        :: else -> break
        od;
        run member(0); run member(1); run member(2); run proposers(); run fate(); run leader(); run watch()
    }
}
